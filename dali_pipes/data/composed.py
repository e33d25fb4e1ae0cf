"""The one form that names of classes and files are compared in."""

import unicodedata


def composed(name: str) -> str:
    """The name with composed characters, Unicode's NFC: é is one character.

    A Mac stores the names of files with e and a combining accent, and most other programs write é,
    so that one name comes in two forms.
    """
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def decomposed(name: str) -> str:
    """The name with combining accents, Unicode's NFD, as a Mac stores it."""
    return name if name.isascii() else unicodedata.normalize("NFD", name)
