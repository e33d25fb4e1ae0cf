"""What names of files and folders mean: images, housekeeping, splits, classes, patterns."""
