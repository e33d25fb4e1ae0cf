"""The plan: order, crop, flip and augmentation of every sample. NumPy only."""
