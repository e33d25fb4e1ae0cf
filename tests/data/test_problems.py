import pytest

from dali_pipes.data import omissions


@pytest.mark.parametrize(
    "problem",
    [
        omissions.NO_LABEL,
        omissions.without_label(".cls or .json of this key"),
        omissions.unusable_label("its .cls holds no class number (b'cat')"),
        "no label (row 3); give it one, or remove the row",
        omissions.unusable_label("its number is too large (2000000); number the classes from 0"),
    ],
)
def test_problems_of_labels_are_told_from_others(problem):
    assert omissions.is_of_label(problem)
    assert not omissions.is_of_label("empty file")
    assert omissions.is_without_label(problem) == ("no .cls" in problem)
