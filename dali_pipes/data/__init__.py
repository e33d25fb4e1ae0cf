"""Manifests of images, and the folders, tables and shards that they are made from."""
