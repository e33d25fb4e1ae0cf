"""The rows of a manifest: the Arrow table, the file that it is saved in, and look-ups by sample
id.
"""
