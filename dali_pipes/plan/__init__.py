"""The plan: order, crop, flip and augmentation of every sample.

It uses NumPy only. `sampling/` says which samples an epoch has, `transforms/` what is made of them,
and `plan.py` joins both to planned batches.
"""
