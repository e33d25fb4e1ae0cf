"""Augmentation: operations on the pixels.

The plan draws them (`policies.py`), and every backend applies them in the same way. `operations.py`
lists them.
"""
