"""Runs all checks that need a GPU in a few minutes: does it work, how fast is it, what limits it?

`run` runs the `parts`, each within its share of the time, and `report` makes Markdown of their
results. See docs/gpu-check.md.
"""
