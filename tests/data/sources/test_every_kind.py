"""What is alike for all kinds of sources."""

import pytest
from every_kind import OF_NAMES, OF_NUMBERS

import dali_pipes as dp

every_kind = pytest.mark.parametrize("kind", OF_NUMBERS)
every_kind_with_names = pytest.mark.parametrize("kind", OF_NAMES)


def classes_of_images(manifest):
    """The name of the class of each image, by its width."""
    labels = manifest.labels if manifest.labels.ndim == 1 else manifest.labels[:, 0]
    names = [manifest.classes[label] for label in labels.tolist()]
    return dict(zip(manifest.sizes[:, 1].tolist(), names, strict=True))


@every_kind_with_names
def test_classes_are_named_in_the_order_of_their_numbers(kind, tmp_path):
    read = OF_NAMES[kind](tmp_path, [1, 0, 2, 1])
    assert read().classes == ["0", "1", "2"]
    # of folders these are other folders
    if kind != "folders":
        named = read(classes=["cat", "dog", "eel", "fox"])
        assert named.classes == ["cat", "dog", "eel", "fox"]
        assert classes_of_images(named) == {1: "dog", 2: "cat", 3: "eel", 4: "dog"}


@every_kind_with_names
def test_classes_in_another_order_get_other_numbers(kind, tmp_path):
    permuted = OF_NAMES[kind](tmp_path, [1, 0, 2, 1])(classes=["2", "0", "1"])
    assert permuted.classes == ["2", "0", "1"]
    assert classes_of_images(permuted) == {1: "1", 2: "0", 3: "2", 4: "1"}


@every_kind_with_names
@pytest.mark.parametrize("classes", [["cat"], ["0", "1"], ["0", "1", "3"], []])
def test_a_class_that_is_not_named_is_refused_by_name(kind, classes, tmp_path):
    """Of folders it is the user's choice which are read."""
    read = OF_NAMES[kind](tmp_path, [1, 0, 2, 1])
    if kind == "folders" and classes and classes != ["cat"]:
        assert len(read(classes=classes)) == 3 and read(classes=classes).omissions
        return
    with pytest.raises(dp.ManifestError, match="class"):
        read(classes=classes)


@every_kind_with_names
@pytest.mark.parametrize("classes", [["0", "1", "0", "2"], "012", [0, 1, 2]])
def test_classes_are_names_that_are_there_once(kind, classes, tmp_path):
    read = OF_NAMES[kind](tmp_path, [1, 0, 2, 1])
    with pytest.raises(dp.ConfigError, match=r"classes (is|names .* twice)"):
        read(classes=classes)


def test_numbers_to_predict_have_no_classes(tmp_path):
    read = OF_NAMES["csv"](tmp_path, [0.5, 0.25])
    with pytest.raises(dp.ManifestError, match="numbers to predict, which have no classes"):
        read(classes=["a", "b"])


def test_a_cached_scan_stays_mapped_if_only_names_are_given(tmp_path):
    named = OF_NAMES["cached"](tmp_path, [1, 0])(classes=["cat", "dog"])
    assert named.rows.files and named.columns is not None


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
