"""Conversion of a live PyTorch DataLoader to a loader of dali_pipes.

`convert` has `from_torch` itself, which returns a `converted_loader`; `conversion` puts together
what all parts do. `trace` runs some samples of the data set under the recorders of `recording/`,
and `label_pass` runs all of them; `samples` makes a manifest of their files, and `files` looks at
those. `batches` reads the order and the collate function. `steps` reads the transforms that were
called, one step after the other; `readers/` has the readers of single steps. `pictures` says where
pictures go in the old loader's batches, and `output` makes these. `check/` compares the result with
the old loader.
"""
