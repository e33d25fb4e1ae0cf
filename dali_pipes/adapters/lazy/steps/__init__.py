"""The table of what is noted: one file for each library, and one row for each of its functions.

`step.py` has the shape of a row. Which files there are is said in `patching.py`, which replaces
the functions of their rows. What is in no row gets true pixels, and is right all the same. timm
has no file: its policies call Pillow, and its random erasing PyTorch.
"""
