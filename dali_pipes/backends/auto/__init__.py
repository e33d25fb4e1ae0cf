"""`AutoConfig`: the backend that trains fastest, found while it trains.

config.py    its options
choices.py   which backends there are for a job, the likely ones first
choosing.py  which of them is next, from how long each step took; it knows no backend
chooser.py   the same by name, and what is said of it
clock.py     how long a step took, and how much of it training waited
backend.py   puts them together: `AutoBackend`
"""
