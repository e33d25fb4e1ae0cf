"""Augmentation: operations on the pixels, drawn in the plan and applied in the same way by every
backend.
"""
