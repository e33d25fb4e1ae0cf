"""The plan: order, crop, flip and augmentation of every sample.

It uses NumPy only. `sampling.py` says which samples an epoch has, `transforms.py` what is made of
them, and `plan.py` joins both to planned batches.
"""
