"""The rows of a manifest: its Arrow table, the file that it is saved in, and looking up what is in
it.
"""
