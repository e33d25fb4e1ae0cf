"""How images become the rows of a manifest: class folders, tables of paths, COCO files, masks,
shards and object stores are read once, and only what has changed is read again.
"""
