import inspect
import os
import pydoc
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from later import later
from PIL import Image

from dali_pipes import ConfigError, Manifest, ManifestError
from dali_pipes.data.sources.rows import files

datasets = later("torchvision.datasets")


def test_order_and_labels_are_those_of_image_folder(image_folder, manifest):
    theirs = datasets.ImageFolder(image_folder)
    assert manifest.classes == theirs.classes
    assert [
        (str(manifest.path(number)), int(manifest.labels[number]))
        for number in range(len(manifest))
    ] == theirs.samples


def test_odd_names_are_ordered_as_in_image_folder(tmp_path):
    for name in (
        "b/a.JPG",
        "b/Z.jpg",
        "b/x/1.jpg",
        "b/x.d/2.jpg",
        "b/x/y/3.png",
        "B/ä ö.jpeg",
        "a.b/1.jpg",
        "a/note.txt",
        "10/1.bmp",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 6)).save(tmp_path / name) if not name.endswith("txt") else (
            tmp_path / name
        ).touch()
    (tmp_path / "a/1.png").write_bytes((tmp_path / "b/x/y/3.png").read_bytes())
    manifest = Manifest.scan(tmp_path, progress=False)
    assert [str(manifest.path(number)) for number in range(len(manifest))] == [
        path for path, _ in datasets.ImageFolder(tmp_path).samples
    ]


def test_sizes_are_those_pillow_sees(manifest):
    for number in range(len(manifest)):
        with Image.open(manifest.path(number)) as image:
            assert manifest.sizes[number].tolist() == [image.height, image.width]


def test_path_matrix_is_zero_padded(manifest):
    ids = np.array([5, 0, 36])
    matrix = manifest.path_matrix(ids)
    assert [os.fsdecode(row.tobytes().rstrip(b"\0")) for row in matrix] == [
        str(manifest.path(number)) for number in ids
    ]


def test_files_with_a_problem_have_no_id_and_are_named(tmp_path, image_folder):
    shutil.copytree(image_folder, tmp_path / "set")
    some = sorted((tmp_path / "set").rglob("*.jpg"))
    some[0].write_bytes(b"")
    some[1].write_bytes(os.urandom(500))
    some[2].write_bytes(b"<html>not found</html>")
    some[3].unlink()
    some[3].symlink_to(tmp_path / "gone")
    Image.new("RGB", (5, 5)).save(some[4], "GIF")
    manifest = Manifest.scan(tmp_path / "set", progress=False)
    problems = {name.rsplit("/", 1)[-1]: problem for name, problem in manifest.problems}
    assert len(manifest) == 32 and len(problems) == 5
    assert problems[some[0].name] == "empty file"
    assert "not an image" in problems[some[1].name] and "not an image" in problems[some[2].name]
    assert problems[some[3].name] == "no such file or directory"
    assert problems[some[4].name].startswith("GIF format")
    assert not {str(manifest.path(number)) for number in range(len(manifest))} & {
        str(path) for path in some[:5]
    }


def test_a_bomb_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    Image.new("1", (20_000, 20_000)).save(tmp_path / "a/bomb.png")
    manifest = Manifest.scan(tmp_path, progress=False)
    assert "89,478,485 pixels" in manifest.problems[0][1]


def test_exif_orientation_is_recorded(tmp_path):
    (tmp_path / "a").mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.new("RGB", (8, 6)).save(tmp_path / f"a/{orientation}.jpg", exif=exif)
    Image.new("RGB", (8, 6)).save(tmp_path / "a/9.jpg", exif=b"Exif\0\0broken")
    manifest = Manifest.scan(tmp_path, progress=False)
    assert manifest.table["orientation"].to_pylist() == [1, 2, 3, 4, 5, 6, 7, 8, 1]


def test_saved_and_loaded_is_the_same(manifest, tmp_path):
    manifest.save(tmp_path / "deep/er/m.parquet")
    loaded = Manifest.load(tmp_path / "deep/er/m.parquet")
    assert loaded.fingerprint == manifest.fingerprint
    assert (
        loaded.table.equals(manifest.table)
        and loaded.classes == manifest.classes
        and loaded.root == manifest.root
    )
    assert [path.name for path in (tmp_path / "deep/er").iterdir()] == ["m.parquet"]


def test_a_failed_save_leaves_the_old_file(manifest, tmp_path, monkeypatch):
    manifest.save(tmp_path / "m.parquet")
    before = (tmp_path / "m.parquet").read_bytes()

    def dies(table, where, **options):
        where.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", dies)
    with pytest.raises(OSError, match="disk full"):
        manifest.save(tmp_path / "m.parquet")
    assert (tmp_path / "m.parquet").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_an_unchanged_file_is_not_read_again(image_folder, tmp_path, monkeypatch):
    shutil.copytree(image_folder, tmp_path / "set")
    cache = tmp_path / "cache.parquet"
    first = Manifest.scan(tmp_path / "set", cache=cache, progress=False)
    read = []
    original = files.read_header
    monkeypatch.setattr(
        files, "read_header", lambda path, check: read.append(path) or original(path, check)
    )
    assert (
        Manifest.scan(tmp_path / "set", cache=cache, progress=False).fingerprint
        == first.fingerprint
    )
    assert read == []
    changed = first.path(3)
    Image.new("RGB", (40, 30)).save(changed)
    assert Manifest.scan(tmp_path / "set", cache=cache, progress=False).sizes[3].tolist() == [
        30,
        40,
    ]
    assert read == [os.fsencode(changed)]


def test_a_file_of_somebody_elses_is_not_overwritten(manifest, tmp_path):
    for content in (b"damaged", b""):
        (tmp_path / "mine.parquet").write_bytes(content)
        with pytest.raises(ManifestError, match="is not a manifest"):
            Manifest.scan(manifest.root, cache=tmp_path / "mine.parquet", progress=False)
        with pytest.raises(ManifestError, match="is not a manifest"):
            manifest.save(tmp_path / "mine.parquet")
        assert (tmp_path / "mine.parquet").read_bytes() == content


def test_a_cache_that_cannot_be_written_stops_nothing(manifest, caplog):
    assert len(Manifest.scan(manifest.root, cache="/proc/none/c.parquet", progress=False)) == len(
        manifest
    )
    assert "cannot be cached" in caplog.text


def test_many_files_are_read_by_processes_in_the_same_order(manifest, monkeypatch):
    monkeypatch.setitem(files.CHUNK, "header", 4)
    monkeypatch.setitem(files._ONE_PROCESS_MAX, "header", 16)
    assert Manifest.scan(manifest.root, progress=False, workers=3).table.equals(manifest.table)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_table_of_path_and_label(manifest, tmp_path, form):
    ids = [3, 1, 2]
    names = [manifest.classes[manifest.labels[number]] for number in ids]
    table = pa.table(
        {
            "path": [str(manifest.path(number)) for number in ids],
            "label": names,
            "other": [1.0, 2.0, 3.0],
        }
    )
    file = tmp_path / f"labels.{form}"
    pyarrow.csv.write_csv(table, file) if form == "csv" else pq.write_table(table, file)
    listed = Manifest.open(file, progress=False)
    assert [listed.path(number) for number in range(3)] == [manifest.path(number) for number in ids]
    assert [listed.classes[label] for label in listed.labels] == names


def test_a_table_with_relative_paths_and_numbers(manifest, tmp_path):
    file = manifest.root / "labels.csv"
    file.write_text(
        "path,label\n"
        + "".join(
            f"{manifest.path(number).relative_to(manifest.root)},{number}\n" for number in (4, 2)
        )
    )
    try:
        listed = Manifest.from_table(file, progress=False)
    finally:
        file.unlink()
    assert (
        listed.path(0) == manifest.path(4)
        and listed.labels.tolist() == [4, 2]
        and len(listed.classes) == 5
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "path,label\n",
        "path,label\nx.jpg,-1\n",
        "path,label\nx.jpg,\n",
        "path,label\n3,1\n",
        "path,label\nx.jpg,3000000000\n",
    ],
)
def test_a_table_that_is_none(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ManifestError, match=r"t\.csv"):
        Manifest.open(tmp_path / "t.csv", progress=False)


def test_wrong_folders(tmp_path):
    with pytest.raises(ManifestError, match="no such folder"):
        Manifest.scan(tmp_path / "gone")
    with pytest.raises(ManifestError, match="no class folders"):
        Manifest.scan(tmp_path)
    (tmp_path / "a").mkdir()
    with pytest.raises(ManifestError, match="hold no image"):
        Manifest.scan(tmp_path)


@given(st.binary(max_size=300))
def test_a_damaged_manifest_is_refused(tmp_path_factory, junk):
    file = tmp_path_factory.mktemp("junk") / "m.parquet"
    file.write_bytes(junk)
    with pytest.raises(ManifestError, match="not a manifest"):
        Manifest.load(file)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("label", 99),
        ("label", -1),
        ("height", 0),
        ("label", None),
        ("path", b"a\0b"),
        ("path", b"/etc/passwd"),
    ],
)
def test_a_manifest_that_would_mislead_a_loader_is_refused(manifest, tmp_path, column, value):
    values = manifest.table[column].to_pylist()
    values[2] = value
    field = manifest.table.schema.field(column)
    forged = manifest.table.set_column(
        manifest.table.schema.get_field_index(column), field, pa.array(values, field.type)
    )
    with pytest.raises(ManifestError):
        Manifest.from_rows(manifest.root, manifest.classes, forged)


def test_fingerprint_follows_the_content_and_not_the_place(manifest, tmp_path):
    shutil.copytree(manifest.root, tmp_path / "moved")
    assert Manifest.scan(tmp_path / "moved", progress=False).fingerprint == manifest.fingerprint
    assert manifest.subset(np.arange(36)).fingerprint != manifest.fingerprint


def test_subset_keeps_the_order_it_is_given(manifest):
    part = manifest.subset(np.array([7, 3]))
    assert [part.path(0), part.path(1)] == [manifest.path(7), manifest.path(3)]
    assert part.labels.tolist() == manifest.labels[[7, 3]].tolist()


@pytest.mark.parametrize("name", ["open", "scan", "from_table", "from_coco", "from_masks"])
def test_readers_are_called_and_documented_as_methods(name):
    read = getattr(Manifest, name)
    first, *options = inspect.signature(read).parameters.values()
    assert {"strict", "verify", "max_pixels"} <= {option.name for option in options}
    assert f"{name}({first.name}: " in pydoc.plain(pydoc.render_doc(read))
    assert "Args:" in read.__doc__ and "ManifestError: " in read.__doc__

    with pytest.raises(TypeError, match=rf"Manifest.{name}\(\): missing a .* '{first.name}'"):
        read()
    with pytest.raises(TypeError, match=rf"\A{name}\(\) got an unexpected .*; did you mean strict"):
        read("/nowhere", "/nowhere", stric=True)


# of no argument's kind, or naming nothing
WRONG = [None, 5, -1, float("nan"), "", "none", b"none", [], ["a", "a"], {}, {1: 2}, object()]
OF_USERS = ("open", "scan", "from_table", "from_coco", "from_masks", "from_hf", "load", "save")
OF_USERS += ("split", "filter", "subset", "map_classes", "with_classes", "concat")


@pytest.mark.parametrize("name", OF_USERS)
def test_a_value_of_a_wrong_kind_is_refused_by_name(manifest, tmp_path, monkeypatch, name):
    """Of each argument in turn: with an error of the package, or it is taken."""
    monkeypatch.chdir(tmp_path)  # "none" is the name of a new file for some
    method = getattr(manifest, name)
    arguments = inspect.signature(method).parameters
    right = {"source": manifest.root, "file": tmp_path / "m.arrow", "manifests": [manifest]}
    right |= {"fractions": {"all": 1.0}, "classes": manifest.classes}
    needed = {key: right.get(key) for key, each in arguments.items() if each.default is each.empty}
    for key in arguments:
        for value in WRONG:
            try:
                method(**needed | {key: value})
            except (ConfigError, ManifestError) as error:
                assert "\n" not in str(error)
            except Exception as error:
                pytest.fail(f"{name}({key}={value!r}) ends in {type(error).__name__}: {error}")


def test_the_home_folder_is_where_files_go(manifest, tmp_path, monkeypatch):
    """No shell replaces ~ in a program."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    manifest.save("~/saved.arrow")
    assert Manifest.load("~/saved.arrow").fingerprint == manifest.fingerprint
    Manifest.scan(manifest.root, cache="~/scan.arrow", progress=False)
    Manifest.scan(manifest.root, cache_dir="~/scans", progress=False)
    assert (tmp_path / "saved.arrow").is_file() and (tmp_path / "scan.arrow").is_file()
    assert [*(tmp_path / "scans").iterdir()] and not [*(tmp_path / "here").iterdir()]
