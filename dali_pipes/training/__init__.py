"""Training: what `dali-pipes train` runs.

`run.train` is the entry. It starts the ranks (`launch`), opens the images (`data`), and lets a
`Trainer` go through the epochs. What is learned is a task (`tasks`), of a network (`network`),
whose weights an optimizer changes (`optimizing`); `log` says and writes what happens.
"""
