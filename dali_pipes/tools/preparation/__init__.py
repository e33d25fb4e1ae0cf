"""dali-pipes prepare: makes smaller JPEGs, shards, or PNGs of CIFAR, once before training.

See docs/prepare.md.
"""
