"""How images become the rows of a manifest: folders of classes, tables of paths, and shards, read
once and not again.
"""
