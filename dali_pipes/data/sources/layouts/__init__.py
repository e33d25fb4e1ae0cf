"""Data sets of other programs: how each is recognized, and what to do with it."""
