"""Transforms of torchvision, timm and albumentations, as transforms of dali_pipes.

`convert` has `transform_from_torch`, which reads a live transform without running it. `steps` takes
it apart and has the table of what reads each step, `readers/` has the readers, and `reading` keeps
what they have read, builds the transform, and has the error for what a plan does not do.
"""
