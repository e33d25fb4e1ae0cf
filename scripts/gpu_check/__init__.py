"""Everything that only a GPU can show, in one run of a few minutes: whether it works, how fast it is, and what limits it."""
