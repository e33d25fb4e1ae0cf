"""All checks that need a GPU, in one run of a few minutes: does it work, how fast is it, and what
limits it.
"""
