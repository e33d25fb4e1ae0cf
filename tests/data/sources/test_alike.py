"""What is alike for all kinds of sources."""

import pytest
from every_kind import OF_NUMBERS

import dali_pipes as dp

every_kind = pytest.mark.parametrize("kind", OF_NUMBERS)


@every_kind
def test_minus_one_is_no_label(kind, tmp_path):
    read = OF_NUMBERS[kind](tmp_path / "s", [1, -1, 0, 2, -1])
    manifest = read()
    assert manifest.labels.tolist() == [1, 0, 2] and manifest.sizes[:, 1].tolist() == [1, 3, 4]
    assert [why.startswith("no label") for _, why in manifest.problems] == [True, True]
    assert [(each.number, each.unit) for each in manifest.omissions] == [(2, "image")]
    with pytest.raises(dp.OmissionError):
        read(strict=True)


@every_kind
def test_images_without_a_label_are_read_where_none_is_asked_for(kind, tmp_path):
    manifest = OF_NUMBERS[kind](tmp_path / "s", [-1, -1])(with_labels=False)
    assert len(manifest) == 2 and not manifest.omissions


@every_kind
def test_no_other_negative_number_is_a_class(kind, tmp_path):
    """Of shards it is a problem of the image, and of tables an error."""
    read = OF_NUMBERS[kind](tmp_path / "s", [1, -7, 0])
    if kind.startswith("t"):
        assert read().labels.tolist() == [1, 0] and "no label" in read().problems[0][1]
    else:
        with pytest.raises(dp.ManifestError, match="labels run from -7 to 1, as -7"):
            read()
