"""Training: dali-pipes train."""
