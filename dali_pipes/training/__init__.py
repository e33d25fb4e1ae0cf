"""Training: scripts/train.py."""
