"""dali-pipes migrate -- train.py ARGS: what of a program's DataLoaders can be carried over, the
change of the program, and what it gains. See docs/from_torch.md.
"""
