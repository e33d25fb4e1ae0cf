"""Readers of single steps, by what a step does. The tables of `steps` say which one reads which.

A reader gets the `TransformReading` so far and the live step. It checks that a plan can do the same
at this place, notes it there, and returns in words what carries the step out; or it raises
NotConvertibleError.

- `geometry.py`: the resize, the crop and the flips that a plan has itself;
- `whole.py`: what moves the pixels of the whole image, before that;
- `policies.py`: colours, blur, rotation, erasing, AutoAugment: policies of `augment`;
- `values.py`: tensors, floats, Normalize;
- `timm.py`: steps that only timm has;
- `albumentations.py`: its steps in the words of torchvision, for the readers above.
"""
