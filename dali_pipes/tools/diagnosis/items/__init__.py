"""What an item spends its time with: makes some items, and samples the stack meanwhile."""
