"""What a loader yields, for people to look at."""
