"""The page that a training run leaves, and the page that compares the runs of a sweep."""
