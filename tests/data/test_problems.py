import pytest

from dali_pipes.data import omissions


@pytest.mark.parametrize(
    "problem",
    [
        omissions.NO_LABEL,
        omissions.HOLE_IN_LABELS,
        omissions.without_label(".cls or .json of this key"),
        omissions.unusable_label("its .cls holds no class number (b'cat')"),
        "no label (row 3); give it one, or remove the row",
        "label 2000000; number the classes from 0, without large gaps",
    ],
)
def test_problems_of_labels_are_told_from_others(problem):
    assert omissions.is_of_label(problem)
    assert not omissions.is_of_label("empty file") and not omissions.is_of_object(problem)
    assert omissions.is_without_label(problem) == ("no .cls" in problem)


def test_problems_of_annotations_are_told_from_those_of_images():
    for line in ("annotation 3: its box is empty", "annotations[0]: it is no JSON object"):
        assert omissions.is_of_annotation(line) and omissions.is_of_object(line)
    assert omissions.is_of_object("object 1: its box is empty")
    assert not omissions.is_of_annotation("object 1: its box is empty")
