"""A/B measurement of loaders: cost and throughput, measured in the same way for all of them."""
