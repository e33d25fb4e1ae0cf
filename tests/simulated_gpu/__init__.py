"""A GPU that is simulated, for tests where there is none: README.md beside this file says how it
works and what it shows.
"""
