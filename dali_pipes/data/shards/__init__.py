"""Many images in one file: tar, in the manner of WebDataset, and TFRecord."""
