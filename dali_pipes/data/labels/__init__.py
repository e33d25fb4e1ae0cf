"""Labels: how a table has them, and how a manifest does."""
