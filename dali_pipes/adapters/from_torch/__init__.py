"""Conversion of a live PyTorch DataLoader to a loader of dali_pipes.

`convert` puts it together. `trace` runs some samples of the data set under the recorders of
`recording/`, and `label_pass` runs all of them; `samples` makes a manifest of their files.
`batches` reads the order and the collate function. `steps` reads the transforms that were called,
one step after the other; `readers/` has the readers of single steps. `output` makes the old
loader's batches. `check` compares the result with the old loader.
"""
