"""dali-pipes prepare: makes smaller JPEGs or shards, once before training.

See docs/prepare.md.
"""
