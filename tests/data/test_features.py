"""What the features of `datasets` say of columns of classes."""

import pytest

from dali_pipes.data.features import class_names

CLASSES = {"_type": "ClassLabel", "names": ["cat", "dog"]}


@pytest.mark.parametrize("kind", ["Sequence", "List", "LargeList"])
def test_class_numbers_in_lists_are_found(kind):
    of = {"_type": kind, "feature": CLASSES, "length": -1}
    fields = {"category": of, "feature": CLASSES}
    features = {"tags": of, "boxes": {"_type": kind, "feature": fields}, "old": [CLASSES]}
    assert list(class_names(features)) == ["tags", "boxes.category", "boxes.feature", "old"]


def test_a_struct_with_a_field_called_feature_is_no_list():
    features = {"about": {"feature": CLASSES, "year": {"_type": "Value", "dtype": "int32"}}}
    assert class_names(features) == {"about.feature": ["cat", "dog"]}
