"""Prepares images once, before training: smaller JPEGs, shards, CIFAR as PNGs. dali-pipes
prepare.
"""
