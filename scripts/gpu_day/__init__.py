"""The day on which a GPU is lent; docs/gpu-check.md."""
