"""dali-pipes doctor: checks whether this machine can load images and train on a GPU.

docs/doctor.md lists every check.
"""
