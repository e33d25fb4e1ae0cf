"""From recipes to pixels in the training process.

    recipe ──reading.py, row.py──▶ row ──batches.py──▶ planned batch ──lines.py──▶ backend ──▶ cells

A recipe is read from front to back and becomes a `Row`, if a planned batch has a place for its
notes. Rows of one `RowKind` are planned together and go through one backend, whose `BackendLine`
lines.py has. A picture one of whose notes has no place is made as it was noted, by the functions
of the program's own libraries: in its worker (places.py), or in threads of executor.py, which puts
all together.
"""
