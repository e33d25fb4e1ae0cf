"""Augmentation: operations on the pixels, drawn in the plan and carried out alike by every backend."""
