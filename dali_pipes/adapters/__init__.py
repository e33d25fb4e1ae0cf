"""Loaders in the training programs of other libraries.

A module needs the library of its name, and nothing else imports it.
"""
