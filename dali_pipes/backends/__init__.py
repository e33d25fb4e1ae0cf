"""Backends, which carry out a plan. Each module is imported only when it is used."""
