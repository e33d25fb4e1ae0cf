"""Texts of problems that code recognizes: what it asks of a problem is beside the words that the
problem is made of.

The problem of an image is text, since a manifest's file holds text. Most of it is only shown. What
follows from a problem, such as that the image can be used where no label is needed, is asked here.
"""

import re

NO_LABEL = "no label"
HOLE_IN_LABELS = "an empty place in its list of labels"
_WITHOUT = f"{NO_LABEL}: no "
# the last form is that of a class number that is too large (sources/shards.py)
_OF_LABEL = re.compile(rf"{NO_LABEL}\b|{HOLE_IN_LABELS}|label \d+;")
_OF_ANNOTATION = re.compile(r"annotation .+?: |annotations\[\d+\]: ")


def without_label(of: str) -> str:
    """The problem of an image beside which nothing is that could be its label.

    Args:
        of: what a label would be, such as ".cls of this key".
    """
    return f"{_WITHOUT}{of}"


def unusable_label(why: str) -> str:
    """The problem of an image whose label makes no sense."""
    return f"{NO_LABEL}: {why}"


def is_without_label(problem: str) -> bool:
    """Whether nothing is beside an image that could be its label (`without_label`)."""
    return problem.startswith(_WITHOUT)


def is_of_label(problem: str) -> bool:
    """Whether an image can be used where no label is needed."""
    return _OF_LABEL.match(problem) is not None


def is_of_annotation(problem: str) -> bool:
    """Whether a problem is of an annotation that belongs to no image, and not of an image."""
    return _OF_ANNOTATION.match(problem) is not None


def is_of_object(problem: str) -> bool:
    """Whether a line says what is wrong with an object of an image."""
    return is_of_annotation(problem) or problem.startswith("object ")
