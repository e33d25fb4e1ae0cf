"""From recipes to pixels in the training process.

    recipe ──row.py──▶ row ──batches.py──▶ planned batch ──executor.py──▶ backend ──▶ cells

A recipe is read front to back and becomes a `Row`, if a planned batch has a place for its notes.
Rows of one `Kind` are planned together and go to one backend. Whatever has no place is made as it
was noted, by the functions of the program's own libraries, in threads.
"""
