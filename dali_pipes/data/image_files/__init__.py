"""One image file: its header, and whether all loaders decode the same pixels of it.

`headers.py` reads the header, `stored.py` opens the image as it is stored and refuses to decode one
that is cut off, and `decoders.py` and `disagreements.py` find what a loader refuses or decodes
otherwise.
"""
