"""Names that keep the order of an ImageFolder."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dali_pipes as dp
from dali_pipes.data.table.schema import SCHEMA
from dali_pipes.tools.preparation.folder import class_folders, output_names

NAMES = st.text("ab.-0J ", min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
FILES = st.builds(
    lambda stem, end: stem + end,
    NAMES,
    st.sampled_from([".jpg", ".JPEG", ".png", ".jpg.png", ".png.jpg"]),
)
FOLDERS = st.lists(NAMES, max_size=2).map("/".join)


def manifest(classes, paths, labels) -> dp.Manifest:
    rest = (9, 0, 5, 5, 1, "JPEG", False, None, "4:2:0", b"", b"", 0, 0)
    rows = [(path.encode(), label, *rest) for path, label in zip(paths, labels, strict=True)]
    return dp.Manifest.from_rows(
        "/images", classes, pa.table(list(map(list, zip(*rows, strict=True))), schema=SCHEMA)
    )


def listed(classes, paths):
    """What `list_image_folder` makes of these paths: by class, then folder by folder, then by
    name.
    """
    order = sorted(
        paths,
        key=lambda path: (path.split("/")[0], path.rpartition("/")[0], path.rpartition("/")[2]),
    )
    return order, [classes.index(path.split("/")[0]) for path in order]


@given(
    st.lists(st.tuples(st.sampled_from(["a", "a b", "b"]), FOLDERS, FILES), min_size=1, max_size=12)
)
@settings(deadline=None)
def test_order_class_and_folder_stay(files):
    classes = ["a", "a b", "b"]
    order, labels = listed(classes, {"/".join(filter(None, each)) for each in files})
    names = output_names(manifest(classes, order, labels))
    assert len(set(names)) == len(names)
    assert listed(classes, names) == (names, labels)
    assert [name.rpartition("/")[0] for name in names] == [
        path.rpartition("/")[0] for path in order
    ]
    assert all(name.lower().endswith((".jpg", ".jpeg")) for name in names)


def test_a_name_is_kept_where_it_can_be():
    paths = ["a/x.JPEG", "a/x.jpg", "a/x.png", "b/sub/y.webp"]
    names = output_names(manifest(["a", "b"], paths, [0, 0, 0, 1]))
    assert names == ["a/x.JPEG", "a/x.jpg", "a/x.png.jpg", "b/sub/y.webp.jpg"]


@pytest.mark.parametrize(
    "files", [["x.png", "x.png.jpg"], ["x.png", "x.png-1.png"], [f"{'n' * 251}.png"]]
)
def test_a_folder_is_numbered_where_names_would_collide_change_order_or_be_too_long(files):
    names = output_names(manifest(["a"], [f"a/{file}" for file in files], [0] * len(files)))
    assert names == [f"a/{number:08d}.jpg" for number in range(len(files))]


def test_images_from_anywhere_are_numbered_within_their_class():
    paths = ["x/1.png", "y/1.png", "../../etc/z.jpg", "b/../../up.jpg"]
    assert output_names(manifest(["a", "b"], paths, [0, 0, 1, 1])) == [
        *("a/00000000.jpg", "a/00000001.jpg"),
        *("b/00000000.jpg", "b/00000001.jpg"),
    ]


def test_an_order_that_folders_cannot_keep_is_refused():
    with pytest.raises(dp.ConfigError, match="not sorted by class"):
        output_names(manifest(["a", "b"], ["1.jpg", "2.jpg", "3.jpg"], [0, 1, 0]))
    with pytest.raises(dp.ConfigError, match="not in sorted order"):
        class_folders(["b", "a"])


def test_class_numbers_get_leading_zeros():
    assert class_folders([str(number) for number in range(11)])[:2] == ["00", "01"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "n" * 256])
def test_a_class_that_is_no_folder_name_is_refused(name):
    with pytest.raises(dp.ConfigError, match="cannot be the name of a folder"):
        class_folders([name])
