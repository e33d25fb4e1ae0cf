"""Augmentation: operations on the pixels.

The plan draws them: `policies/` has a file for each policy, and `augmenter.py` runs a list of them.
Every backend applies them in the same way. `operations.py` lists them.
"""
