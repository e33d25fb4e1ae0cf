"""Data sets whose own code names the images: `__getitem__` runs for every item of every epoch.

An item is what `__getitem__` returns, with an `Encoded` (encoded.py) in place of each picture.
`load` has `load` itself, which looks at one item, and the `ItemLoader` that it returns. `run` runs
the items of planned batches, in worker processes, seeded by their place in the plan: `skeletons`
compares and joins their structures, and `headers` reads the headers of their files. `backend` plans
their pictures and has other backends decode them: an `ItemTransform` (transform.py) says how.
`bad_items` names the pictures that cannot be used.
"""
