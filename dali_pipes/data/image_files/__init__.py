"""One image file: its header, and whether all loaders decode the same pixels of it.

`headers.py` reads the header, `stored.py` opens the image as it is stored, `decoders.py` and
`disagreements.py` find what a loader refuses or decodes otherwise, and `truncation.py` makes Pillow
refuse files that are cut off.
"""
