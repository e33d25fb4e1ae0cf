"""A/B measurement of loaders: the throughput and the cost of each, measured in the same way.

`protocol` runs trials, `trial` is one of them, in a separate process; `figures` and `stats` make
figures and claims of the trials, `wording` puts them into words. `arms` holds what exists only to
be compared. The tools benchmark and prepare are built on it; docs/method.md gives the
reasons.
"""
