"""Conversion of a live PyTorch DataLoader to a loader of dali_pipes.

`convert` puts it together. `samples` reads the data set, `batches` the order and the collate
function, `steps` the transform; `check` compares the result with the old loader.
"""
