"""torchvision's JPEG decoder on a GPU."""
