import pytest

from dali_pipes.data import problems


@pytest.mark.parametrize(
    "problem",
    [
        problems.NO_LABEL,
        problems.HOLE_IN_LABELS,
        problems.without_label(".cls or .json of this key"),
        problems.unusable_label("its .cls holds no class number (b'cat')"),
        "no label (row 3); give it one, or remove the row",
        "label 2000000; number the classes from 0, without large gaps",
    ],
)
def test_problems_of_labels_are_told_from_others(problem):
    assert problems.is_of_label(problem)
    assert not problems.is_of_label("empty file") and not problems.is_of_object(problem)
    assert problems.is_without_label(problem) == ("no .cls" in problem)


def test_problems_of_annotations_are_told_from_those_of_images():
    for line in ("annotation 3: its box is empty", "annotations[0]: it is no JSON object"):
        assert problems.is_of_annotation(line) and problems.is_of_object(line)
    assert problems.is_of_object("object 1: its box is empty")
    assert not problems.is_of_annotation("object 1: its box is empty")
