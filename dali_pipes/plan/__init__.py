"""What happens to each sample: the order, the crop, the flip, the augmentation. NumPy only."""
