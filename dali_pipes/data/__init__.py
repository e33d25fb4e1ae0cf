"""Which images there are: manifests, and the folders, tables and shards that they are made from."""
