"""Is this machine set up for loading images and training on a GPU? docs/doctor.md lists every
check.
"""
