"""The A/B: what a loader costs and what it delivers, measured the same way for all of them."""
