"""The network of a run: how it is built, the weights that it starts from, their average, and the
memory that it needs.
"""
