"""Images made ready once, before training: smaller JPEGs, packed shards, CIFAR unpacked. scripts/prepare.py."""
