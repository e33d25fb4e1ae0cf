"""Transforms of torchvision, timm and albumentations, as transforms of dali_pipes.

`convert` has `transform_from_torch`, which reads a live transform without running it. `steps` takes
it apart and finds the reader of each step, `readers/` has the readers, and `reading` keeps what
they have read and builds the transform. `own_steps` keeps steps that a plan does not have, as
functions that run as they are.
"""
