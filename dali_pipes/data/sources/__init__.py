"""Readers of sources of images: folders, shards, tables, COCO files, masks and indexes."""
