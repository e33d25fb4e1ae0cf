"""From recipes to pixels in the training process.

    recipe ──reading.py, row.py──▶ row ──batches.py──▶ planned batch ──lines.py──▶ backend ──▶ cells

A recipe is read from front to back and becomes a `Row`, if a planned batch has a place for its
notes. Rows of one `RowKind` are planned together and go through one backend, whose `BackendLine`
lines.py has. If there is a place for the first notes only, a backend does these. Whatever has no
place is done as it was noted, by the functions of the program's own libraries, in threads of
executor.py, which puts all together.
"""
