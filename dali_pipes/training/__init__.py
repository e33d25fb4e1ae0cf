"""Training of an image classifier: what `dali-pipes train` runs.

`run.train` is the entry. It starts the ranks (`launch`), opens the images (`data`), and lets a
`Trainer` go through the epochs; the other modules are its parts.
"""
