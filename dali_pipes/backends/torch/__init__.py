"""PyTorch's DataLoader on the CPU, with Pillow or torchvision."""
