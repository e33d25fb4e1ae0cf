"""A user's own Python program: which one it is, how it is started, and where it is.

The modules that its own process imports need only the standard library, since a program may set
OMP_NUM_THREADS before it imports torch.
"""
