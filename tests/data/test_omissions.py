"""What a manifest leaves out: every file is delivered, or named by its kind, whichever way it comes
in.
"""

import io
import json
import logging
import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from make_shards import add
from PIL import Image

import dali_pipes as dp
from dali_pipes.data import omissions
from dali_pipes.data.config import DataConfig
from dali_pipes.data.images import open_images
from dali_pipes.data.sources.names import HOUSEKEEPING_FOLDERS
from dali_pipes.data.sources.shards import MISSING_SHARDS, list_missing_shards

EXAMPLES = int(os.environ.get("DALI_PIPES_EXAMPLES", 40))
OPTIONS = {"transform": dp.EvalTransform(size=8, resize=8), "batch_size": 6, "device": "cpu"}


def loader_of(manifest, **options):
    return dp.build_loader(manifest, dp.TorchConfig(num_workers=0), **OPTIONS | options)


def encoded(kind="JPEG"):
    out = io.BytesIO()
    Image.new("RGB", (12, 10), (200, 40, 90)).save(out, kind)
    return out.getvalue()


JPEG = encoded()
CONTENTS = {
    "good": JPEG,
    "cut": JPEG[:40],
    "empty": b"",
    "text": b"no image",
    "gif": encoded("GIF"),
    "png": encoded("PNG"),
}
# Endings by which a scan knows an image, and others; what lies behind a name need not be what the
# name says.
ENDINGS = [
    ".jpg",
    ".JPEG",
    ".jfif",
    ".jpe",
    ".png",
    ".gif",
    ".heic",
    ".avif",
    ".jp2",
    ".jpg_large",
    ".txt",
    ".json",
    "",
]
FOLDERS = [
    "",
    "cat",
    "dog/deep",
    "dog",
    "train",
    "B 2",
    ".ipynb_checkpoints",
    "cat/.ipynb_checkpoints",
    "__MACOSX/cat",
    "@eaDir",
]
STEMS = ["0", "1", "2.5", "ä ö", "._0", ".hidden", "README", "Thumbs"]
FILES = st.dictionaries(
    st.tuples(st.sampled_from(FOLDERS), st.sampled_from(STEMS), st.sampled_from(ENDINGS)).map(
        lambda parts: os.path.join(parts[0], parts[1] + parts[2])
    ),
    st.sampled_from(list(CONTENTS)),
    max_size=14,
)


def lay(root, files):
    """Writes the files, and one image of each of two classes that a set needs."""
    for name, content in ({"cat/a.jpg": "good", "bus/b.jpg": "good"} | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(CONTENTS[content])


def files_to_account_for(root):
    """Those that lie in no housekeeping folder."""
    housekeeping = (".ipynb_checkpoints", "__MACOSX", "@eaDir")
    inside = [file.relative_to(root) for file in root.rglob("*") if file.is_file()]
    return {str(file) for file in inside if not set(file.parts[:-1]) & set(housekeeping)}


def counted(manifest):
    """How many files are left out by name, without the folders that are left out as such."""
    kinds = [each for each in manifest.omissions if each.kind != HOUSEKEEPING_FOLDERS]
    return sum(each.number for each in kinds if each.unit in ("image", "file"))


def ways_in(root, cache):
    """Every way to open a folder, each of which reads it, or a cache, anew."""
    yield dp.Manifest.scan(root, progress=False)
    yield dp.Manifest.scan(root, cache=cache / "file.arrow", progress=False)
    yield dp.Manifest.scan(root, cache=cache / "file.arrow", progress=False)
    for _ in range(2):
        yield dp.Manifest.open(root, cache_dir=cache, progress=False)
    dp.Manifest.scan(root, progress=False).save(cache / "saved.parquet")
    yield dp.Manifest.open(cache / "saved.parquet")
    yield open_images(DataConfig(train=str(root), cache_dir=str(cache)), "train", progress=False)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(FILES)
def test_every_file_of_a_folder_is_delivered_or_named(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("tree")
    lay(root / "set", files)
    (root / "cache").mkdir()
    there = files_to_account_for(root / "set")
    first = None
    for manifest in ways_in(root / "set", root / "cache"):
        assert len(manifest) + counted(manifest) == len(there)
        assert sum(each.number for each in manifest.omissions if len(each.names) == 0) == 0
        first = first or manifest
        assert (manifest.fingerprint, manifest.omissions) == (first.fingerprint, first.omissions)
        assert not {".ipynb_checkpoints", "__MACOSX", "@eaDir"} & set(manifest.classes)
    with loader_of(first, max_bad_fraction=1, on_bad_sample="substitute") as loader:
        assert sum(len(batch) for batch in loader) == len(first)
    shutil.rmtree(root)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
@given(FILES)
def test_without_labels_every_image_is_delivered_or_named_wherever_it_lies(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("tree")
    lay(root / "set", files)
    for manifest in (
        dp.Manifest.open(root / "set", cache_dir=root / "cache", with_labels=False, progress=False)
        for _ in range(2)
    ):
        assert len(manifest) + counted(manifest) == len(files_to_account_for(root / "set"))
        assert not any(each.kind.startswith("images beside") for each in manifest.omissions)
        assert manifest.task == "multilabel" and manifest.labels.size == 0
    shutil.rmtree(root)


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 2, suppress_health_check=[HealthCheck.too_slow])
@given(FILES)
def test_a_store_leaves_out_what_a_folder_does(tmp_path_factory, files):
    root = tmp_path_factory.mktemp("store") / "set"
    lay(root, files)
    for with_labels in (True, False):
        near = dp.Manifest.scan(root, with_labels=with_labels, progress=False)
        far = dp.Manifest.scan(f"file://{root}", with_labels=with_labels, progress=False)
        assert len(far) + counted(far) == len(files_to_account_for(root))
        names = [
            [each.name(number).rpartition("/set/")[2] for number in range(len(each))]
            for each in (near, far)
        ]
        assert names[0] == names[1] or (not with_labels and sorted(names[0]) == sorted(names[1]))
        kinds = [
            [(each.kind, each.number, each.unit) for each in manifest.omissions]
            for manifest in (near, far)
        ]
        assert kinds[0] == kinds[1]
        used = [
            {manifest.classes[label] for label in manifest.labels} if with_labels else set()
            for manifest in (near, far)
        ]
        assert used[0] == used[1]
    shutil.rmtree(root)


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["0.jpg", "1.jpg", "gone.jpg", "0.gif", "cut.jpg"]), st.integers(0, 3)
    ),
    min_size=1,
    max_size=9,
)


@settings(max_examples=EXAMPLES)
@given(ROWS)
def test_every_row_of_a_table_is_delivered_or_named(tmp_path_factory, rows):
    root = tmp_path_factory.mktemp("table")
    for name, content in {
        "0.jpg": "good",
        "1.jpg": "good",
        "0.gif": "gif",
        "cut.jpg": "cut",
    }.items():
        (root / name).write_bytes(CONTENTS[content])
    paths, labels = zip(("1.jpg", 0), *rows, strict=True)
    pq.write_table(pa.table({"path": paths, "label": labels}), root / "t.parquet")
    manifest = dp.Manifest.open(root / "t.parquet", progress=False)
    assert len(manifest) + counted(manifest) == len(rows) + 1
    shutil.rmtree(root)


@settings(max_examples=EXAMPLES)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([".jpg", ".gif", ".jfif", ".txt", ".png", ".a.seg.png"]),
            st.booleans(),
            st.sampled_from(list(CONTENTS)),
        ),
        max_size=7,
    )
)
def test_every_member_of_a_shard_and_every_file_beside_it_is_delivered_or_named(
    tmp_path_factory, members
):
    root = tmp_path_factory.mktemp("shards")
    parts = {"0.a.seg.png": CONTENTS["png"], "0.jpg": JPEG, "0.cls": b"0"}
    for number, (ending, labelled, content) in enumerate(members):
        parts[f"k{number}{ending}"] = CONTENTS[content]
        parts |= {f"k{number}.cls": b"1"} if labelled else {}
    with tarfile.open(root / "a.tar", "w") as archive:
        for name, content in parts.items():
            add(archive, name, content)
    (root / "beside.jpg").write_bytes(JPEG)
    (root / "b.heic").write_bytes(JPEG)
    for with_labels in (True, False):
        manifest = dp.Manifest.open(root, with_labels=with_labels, progress=False)
        keys = 1 + len(members)
        # beside them 0.a.seg.png and two files
        assert len(manifest) + counted(manifest) == keys + 3
    shutil.rmtree(root)


@pytest.fixture
def folder(tmp_path):
    """Six images that are used and four that are not, of three kinds, and a note."""
    lay(tmp_path / "set", {f"cat/{number}.jpg": "good" for number in range(4)})
    lay(
        tmp_path / "set",
        {
            "bus/x.jpg": "cut",
            "bus/y.jpg": "cut",
            "bus/z.gif": "gif",
            "beside.jpg": "good",
            "note.txt": "text",
        },
    )
    return tmp_path / "set"


LINE = (
    "6 of 10 images are used; left out: not an image, or its header is broken: 2 "
    "(bus/x.jpg, bus/y.jpg); "
    ".gif files: 1 (bus/z.gif); images beside the class folders: 1 (beside.jpg)"
)


def warnings_of(caplog):
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("dali_pipes.data")
    ]


@pytest.mark.parametrize("way", ["scan", "open", "saved", "build_loader"])
def test_what_is_left_out_is_said_once_in_one_line(folder, caplog, way):
    manifest = dp.Manifest.scan(folder, progress=False)
    manifest.save(folder.parent / "m.arrow")
    caplog.clear()
    if way == "scan":
        manifest = dp.Manifest.scan(folder, progress=False)
    elif way == "open":
        manifest = dp.Manifest.open(folder, progress=False)
    elif way == "saved":
        manifest = dp.Manifest.open(folder.parent / "m.arrow")
    else:
        manifest = dp.Manifest.load(folder.parent / "m.arrow")
    with loader_of(manifest, max_bad_fraction=0.5):
        pass
    (line,) = warnings_of(caplog)
    assert LINE in line and "\n" not in line and str(folder) in line


def test_a_part_of_a_manifest_says_it_no_second_time(folder, caplog):
    manifest = dp.Manifest.scan(folder, progress=False)
    caplog.clear()
    for part in (
        manifest.subset(np.arange(3)),
        manifest.filter("width > 1"),
        manifest.map_classes({"cat": "pet"}),
    ):
        part.tell_omissions()
    assert warnings_of(caplog) == []
    assert manifest.map_classes({"cat": "pet"}).omissions == manifest.omissions


def test_a_good_set_with_a_note_is_no_warning(tmp_path, caplog):
    lay(tmp_path, {"README.md": "text", "cat/captions.txt": "text", ".DS_Store": "text"})
    manifest = dp.Manifest.scan(tmp_path, strict=True, progress=False)
    assert warnings_of(caplog) == [] and {each.unit for each in manifest.omissions} == {"file"}


@pytest.mark.parametrize(
    "extra",
    [
        {"cat/a.gif": "gif"},
        {"cat/a": "good"},
        {"beside.png": "png"},
        {"cat/broken.jpg": "cut"},
        {".hidden/a.jpg": "good"},
        {"cat/.a.jpg": "good"},
        {"cat/a.zip": "text"},
        {"cat/README.gif": "gif"},
        {"cat/license.heic": "good"},
    ],
)
def test_strict_allows_nothing_that_may_be_an_image(tmp_path, extra):
    lay(tmp_path, {})
    dp.Manifest.scan(tmp_path, strict=True, progress=False)
    lay(tmp_path, extra)
    with pytest.raises(dp.OmissionError, match="strict allows nothing to be left out") as caught:
        dp.Manifest.open(tmp_path, strict=True, progress=False)
    assert (
        caught.value.status == 1
        and next(iter(extra)).split("/")[-1].removesuffix("/a.jpg") in str(caught.value)
    ) or ".hidden" in str(caught.value)
    manifest = dp.Manifest.open(tmp_path, progress=False)
    with pytest.raises(dp.OmissionError):
        loader_of(manifest, max_bad_fraction=1, strict=True)


def test_dropped_objects_are_said_and_refused(tmp_path, caplog):
    (tmp_path / "a.jpg").write_bytes(JPEG)
    objects = [
        {"id": number, "image_id": image, "category_id": 1, "bbox": box}
        for number, (image, box) in enumerate(
            [(1, [1, 1, 4, 4]), (1, [1, 1, 0, 0]), (7, [1, 1, 2, 2])]
        )
    ]
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": objects,
        "categories": [{"id": 1, "name": "cat"}],
    }
    (tmp_path / "x.json").write_text(json.dumps(content))
    manifest = dp.Manifest.open(tmp_path / "x.json", progress=False)
    (line,) = warnings_of(caplog)
    assert (
        "1 of 1 images are used" not in line or "objects left out of images that are used" in line
    )
    assert [(each.unit, each.number) for each in manifest.omissions] == [
        ("object", 1),
        ("object", 1),
    ] and manifest.bad_images == 0
    with pytest.raises(dp.OmissionError):
        dp.Manifest.from_coco(tmp_path / "x.json", strict=True, progress=False)


def test_masks_without_images_and_images_without_masks_are_named_also_where_they_are_skipped(
    tmp_path,
):
    for name in ("images/a.jpg", "images/b.jpg", "images/c.heic", "masks/a.png", "masks/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        image = Image.new("L" if "masks" in name else "RGB", (12, 10))
        image.save(tmp_path / name, "PNG" if "masks" in name else "JPEG")
    for missing, others in (
        ("skip", {"images without a mask", ".heic files", "masks without an image"}),
        ("problem", {"no mask of its name", ".heic files", "a mask without an image of its name"}),
    ):
        manifest = dp.Manifest.from_masks(
            tmp_path / "images", tmp_path / "masks", missing=missing, progress=False
        )
        assert {each.kind for each in manifest.omissions} == others


@pytest.mark.parametrize(
    ("fraction", "is_allowed"), [(0.25, True), (0.24, False), (0, False), (1, True)]
)
def test_the_share_of_bad_images_is_that_of_the_scan_too(folder, fraction, is_allowed):
    manifest = dp.Manifest.scan(folder, progress=False)  # 2 of 8 cannot be used
    if is_allowed:
        loader_of(manifest, max_bad_fraction=fraction).close()
        return
    with pytest.raises(
        dp.ManifestError,
        match=r"2 of 8 images cannot be used, more than max_bad_fraction=.* allows: bus/x.jpg",
    ):
        loader_of(manifest, max_bad_fraction=fraction)


def test_images_found_bad_later_count_beside_those_of_the_scan(folder):
    manifest = dp.Manifest.scan(folder, progress=False)
    (folder / "cat/0.jpg").write_bytes(JPEG[:300])
    options = {"on_bad_sample": "substitute"}
    with loader_of(manifest, max_bad_fraction=3 / 8, **options) as loader:
        assert sum(map(len, loader)) == 6 and len(loader.bad_samples) == 1
    with (
        loader_of(manifest, max_bad_fraction=2 / 8, **options) as loader,
        pytest.raises(dp.BadSampleError, match="3 of 8 images are bad so far"),
    ):
        list(loader)


@pytest.mark.parametrize(
    ("problem", "kind"),
    [
        ("more than 8 bits a channel; convert it to 8 bits", "more than 8 bits a channel"),
        ("more than 89,478,485 pixels (60000 × 60000)", "more than 89,478,485 pixels"),
        ("cannot be decoded by DALI (nvImageCodec: at byte 7)", "cannot be decoded by DALI"),
        (
            "its mask: not of the image's size (a (1).png: 3 × 4, not 5 × 6); make them equal",
            "its mask: not of the image's size",
        ),
        (
            (
                "its mask: its values include 7 (/a/b; c.png); or mask_values={7: 1} joins 7 to "
                "class 1 (…)"
            ),
            "its mask: its values include 7",
        ),
        ("its mask: permission denied (masks/b)", "its mask: permission denied"),
        (
            "its box is empty or inverted (object 3: 1, 1, 0, 0); correct it or remove it",
            "its box is empty or inverted",
        ),
    ],
)
def test_a_kind_has_nothing_that_differs_from_file_to_file(problem, kind):
    assert omissions.kind_of(problem) == kind


@pytest.mark.parametrize(
    ("problem", "added"),
    [
        ("no label", "no label (row 3)"),
        ("no label; give it one (or two)", "no label (row 3); give it one (or two)"),
        ("broken (a; b); save it again", "broken (row 3: a; b); save it again"),
    ],
)
def test_a_detail_stands_after_the_kind(problem, added):
    assert omissions.add_detail(problem, "row 3") == added
    assert omissions.kind_of(added) == omissions.kind_of(problem)


def test_names_that_are_not_unicode_can_be_said(tmp_path):
    lay(tmp_path, {})
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/cat/\xff.gif"))).write_bytes(b"x")
    manifest = dp.Manifest.scan(tmp_path, cache=tmp_path / "m.arrow", progress=False)
    text = omissions.describe(manifest.root, len(manifest), manifest.omissions)
    assert text.encode() and "cat/\\udcff.gif" in text
    assert dp.Manifest.load(tmp_path / "m.arrow").omissions == manifest.omissions


def test_images_in_housekeeping_folders_are_named_wherever_these_are(tmp_path):
    lay(
        tmp_path,
        {
            "cat/.ipynb_checkpoints/0.jpg": "good",
            "cat/deep/@eaDir/x.jpg": "good",
            "lost+found/1.jpg": "good",
        },
    )
    for with_labels in (True, False):
        for root in (tmp_path, f"file://{tmp_path}"):
            manifest = dp.Manifest.scan(root, with_labels=with_labels, progress=False)
            (folders,) = [each for each in manifest.omissions if each.kind == HOUSEKEEPING_FOLDERS]
            assert (folders.number, folders.unit, len(manifest)) == (3, "file", 2)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1", "half"])
@pytest.mark.parametrize("pattern", ["", "train-*", "train-{00000..00001}-of-00002.parquet"])
def test_a_parquet_file_that_cannot_be_read_is_named(tmp_path, content, pattern):
    table = pa.table({"image": [{"bytes": JPEG, "path": None}], "label": [0]})
    for number in range(2):
        pq.write_table(table, tmp_path / f"train-{number:05d}-of-00002.parquet")
    broken = tmp_path / "train-00001-of-00002.parquet"
    broken.write_bytes(broken.read_bytes()[:-20] if content == "half" else content)
    with pytest.raises(
        dp.ManifestError, match=r"train-00001-of-00002.parquet: cannot be read as Parquet"
    ):
        dp.Manifest.open(tmp_path / pattern, progress=False)


def test_folders_beside_parquet_files_with_images_are_named(tmp_path):
    table = pa.table({"image": [{"bytes": JPEG, "path": None}], "label": [0]})
    pq.write_table(table, tmp_path / "train.parquet")
    for name in ("cat/1.jpg", "cat/deep/2.jpg", ".hidden/3.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(JPEG)
    pq.write_table(table, tmp_path / "cat/more.parquet")
    # what lies behind a link is not theirs
    (tmp_path / "disk").symlink_to(tmp_path / "cat")

    manifest = dp.Manifest.open(tmp_path, progress=False)
    assert [(omission.kind, omission.names) for omission in manifest.omissions] == [
        ("images in folders beside the shards", ["cat/1.jpg", "cat/deep/2.jpg"]),
        ("shards in folders beside the shards", ["cat/more.parquet"]),
    ]
    with pytest.raises(dp.OmissionError, match=r"cat/1.jpg"):
        dp.Manifest.open(tmp_path, strict=True, progress=False)


@pytest.mark.parametrize("kind", ["parquet", "tar"])
@pytest.mark.parametrize("named", ["0.{}", "{{0..1}}.{}"])
def test_images_beside_shards_that_are_named_are_counted_and_may_be_there(tmp_path, kind, named):
    for name in ("0.parquet", "1.parquet"):
        table = pa.table({"image": [{"bytes": JPEG, "path": None}], "label": [0]})
        pq.write_table(table, tmp_path / name)
    for name in ("0.tar", "1.tar", "2.tar"):
        with tarfile.open(tmp_path / name, "w") as archive:
            add(archive, "0.jpg", JPEG)
            add(archive, "0.cls", b"0")
    for name in ("a.jpg", "b.png"):
        (tmp_path / name).write_bytes(JPEG)

    manifest = dp.Manifest.open(tmp_path / named.format(kind), strict=True, progress=False)
    assert manifest.omissions == [
        ("images that the source does not name", 2, ["a.jpg", "b.png"], "file")
    ]


@pytest.mark.parametrize("kind", ["parquet", "tar"])
def test_shards_that_are_missing_by_their_numbers_are_named(tmp_path, kind):
    name = "train-00002-of-00004.parquet" if kind == "parquet" else "train.tfrecord-00001-of-00003"
    if kind == "parquet":
        pq.write_table(
            pa.table({"image": [{"bytes": JPEG, "path": None}], "label": [0]}), tmp_path / name
        )
        (tmp_path / "beside.jpg").write_bytes(JPEG)
        manifest = dp.Manifest.open(tmp_path, progress=False)
        assert [(each.kind, each.number) for each in manifest.omissions] == [
            (MISSING_SHARDS, 3),
            ("images beside the shards", 1),
        ]
        # one file was asked for
        assert len(dp.Manifest.open(tmp_path / name, strict=True, progress=False)) == 1
    else:
        assert list_missing_shards([name]) == [
            "train.tfrecord-00000-of-00003",
            "train.tfrecord-00002-of-00003",
        ]


def test_parquet_without_a_label_is_read_without_labels(tmp_path):
    pq.write_table(pa.table({"image": [{"bytes": JPEG, "path": None}] * 3}), tmp_path / "a.parquet")
    assert len(dp.Manifest.open(tmp_path / "a.parquet", with_labels=False, progress=False)) == 3


def test_parts_that_stand_for_the_whole_keep_what_is_left_out(folder):
    manifest = dp.Manifest.scan(folder, progress=False)
    filtered = manifest.filter("width > 0")
    saved = [
        filtered.save(file) or dp.Manifest.load(file)
        for file in (folder.parent / "f.arrow", folder.parent / "f.parquet")
    ]
    changed = [
        filtered.map_classes({"cat": "pet"}),
        filtered.with_classes(["x", *filtered.classes]),
        *saved,
    ]
    for part in (
        filtered,
        manifest.split({"all": 1.0})["all"],
        filtered.filter("height > 0"),
        *changed,
    ):
        with pytest.raises(dp.ManifestError, match="2 of 8 images cannot be used"):
            loader_of(part)
        with pytest.raises(dp.OmissionError):
            loader_of(part, max_bad_fraction=1, strict=True)
        loader_of(part, max_bad_fraction=0.25).close()
    loader_of(filtered.subset(np.arange(3)), strict=True).close()  # a choice of one's own


def test_joined_parts_count_what_their_wholes_left_out(folder):
    manifest = dp.Manifest.scan(folder, progress=False)
    joined = dp.Manifest.concat([manifest.filter("width > 0"), manifest])
    assert joined.bad_of_whole == (4, 16)
    with pytest.raises(dp.OmissionError, match=r"header is broken: 4 \("):
        joined.tell_omissions(strict=True)


def test_one_line_whatever_names_there_are(tmp_path, caplog):
    lay(tmp_path, {})
    for number in range(40):
        (tmp_path / f"cat/IM.{number:06d}").touch()
        (tmp_path / f"cat/x.e{number}x").touch()
    (tmp_path / "cat/a\n\x1b[31mred.gif").touch()
    manifest = dp.Manifest.scan(tmp_path, progress=False)
    (line,) = warnings_of(caplog)
    assert line.isprintable() and len(line) < 4_000 and len(manifest) + counted(manifest) == 83
    assert "files without an extension: 40" in line and "other kinds" in line
