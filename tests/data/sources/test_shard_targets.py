"""Targets out of tars: what is asked for by name, and what is missing."""

import io
import json
import tarfile

import numpy as np
import pytest
from make_shards import add
from PIL import Image

from dali_pipes import ConfigError, Manifest, ManifestError, Targets
from dali_pipes.data import mask_values
from dali_pipes.data.reader import Reader
from dali_pipes.data.shards import remote


def encoded(mode="RGB", format="PNG", size=(40, 30), value=0):
    file = io.BytesIO()
    Image.new(mode, size, value).save(file, format)
    return file.getvalue()


def tar(folder, samples, name="0.tar"):
    """Each sample: content by extension."""
    folder.mkdir(exist_ok=True)
    with tarfile.open(folder / name, "w") as archive:
        for number, sample in enumerate(samples):
            for extension, content in {".jpg": encoded(format="JPEG"), **sample}.items():
                add(
                    archive,
                    f"{number}{extension}",
                    content if isinstance(content, bytes) else json.dumps(content).encode(),
                )
    return folder


def scan(folder, **targets):
    return Manifest.scan(folder, targets=Targets(**targets), progress=False)


OBJECTS = {"boxes": "boxes", "box_labels": "labels"}


def test_objects_texts_and_masks_of_a_tar(tmp_path):
    samples = [
        {
            ".json": {
                "boxes": [[1, 2, 3, 4]] * n,
                "labels": ["dog", "cat"][:n],
                "kp": [[1, 2, 2]] * n,
            },
            ".txt": f"ü{n}".encode(),
        }
        | {".png": encoded("L", value=n)}
        for n in range(3)
    ]
    folder = tar(
        tar(tmp_path / "s", samples),
        [samples[1] | {".json": samples[1][".json"] | {"labels": ["emu"]}}],
        "1.tar",
    )
    manifest = scan(
        folder, **OBJECTS, keypoints="kp", keypoint_names=["nose"], text=".txt", mask=".png"
    )
    assert not manifest.problems and manifest.classes == ["cat", "dog", "emu"]
    assert manifest.labels.tolist() == [[-1, -1], [1, -1], [0, 1], [2, -1]]
    objects = manifest.take_objects(np.arange(4))
    assert objects.counts.tolist() == [0, 1, 2, 1] and objects.labels.tolist() == [1, 1, 0, 2]
    assert (
        objects.boxes.tolist() == [[1, 2, 3, 4]] * 4
        and objects.keypoints.tolist() == [[[1, 2, 2]]] * 4
    )
    assert manifest.take_texts("text", np.arange(4)) == ["ü0", "ü1", "ü2", "ü1"]
    masks = [
        Image.open(io.BytesIO(Reader().read(manifest.mask_extent(number)).tobytes()))
        for number in range(4)
    ]
    assert [mask.getpixel((0, 0)) for mask in masks] == [0, 1, 2, 1]


def test_a_mask_whose_extension_has_several_dots_is_a_target_or_left_out_by_name(tmp_path):
    folder = tar(tmp_path / "s", [{".cls": b"0", ".a.seg.png": encoded("L", value=7)}])
    manifest = scan(folder, mask=".a.seg.png")
    assert not manifest.omissions and manifest.labels.tolist() == [0]
    mask = Reader().read(manifest.mask_extent(0)).tobytes()
    assert Image.open(io.BytesIO(mask)).getpixel((0, 0)) == 7

    (omission,) = scan(folder).omissions
    assert omission == ("a second image of one key", 1, ["0.tar/0.a.seg.png"], "image")


@pytest.mark.parametrize(
    ("text", "mask"), [(".txt", ".png"), (".TXT", ".PNG"), (".Txt", ".É.Png"), (".é.TXT", ".pnG")]
)
def test_extensions_of_members_are_found_in_any_case(tmp_path, text, mask):
    """Of the letters of ASCII, in the option as in the archive."""
    for number, change in enumerate((str, lambda name: name.replace("t", "T").replace("n", "N"))):
        sample = {change(text): b"words", change(mask): encoded("L")}
        manifest = scan(tar(tmp_path / str(number), [sample]), text=text, mask=mask)
        assert not manifest.omissions and manifest.take_texts("text", np.arange(1)) == ["words"]
        assert manifest.mask_extent(0)


@pytest.mark.parametrize(
    ("sample", "line"),
    [
        ({}, "no .json of this key"),
        ({".json": b"{"}, "cannot be read"),
        ({".json": [1]}, "cannot be read"),
        ({".json": {"boxes": []}}, "its .json has no labels"),
        (
            {".json": {"boxes": [[1, 2, 3]], "labels": [0]}},
            "each object needs 4 in boxes, 1 in labels",
        ),
        ({".json": {"boxes": [[1, 2, 3, "x"]], "labels": [0]}}, "each object needs 4"),
        ({".json": {"boxes": [[1, 2, 3, 4]], "labels": []}}, "each object needs 4"),
        ({".json": {"boxes": [[1, 2, 3, 4]], "labels": [-(2**63) - 1]}}, "each object needs 4"),
        (
            {".json": b" " * (2**20 + 1)},
            "its .json is too long (1,048,577 bytes, and no more than 1,048,576 are read)",
        ),
        (
            {".txt": b"t" * (2**20 + 1), ".json": {"boxes": [], "labels": []}},
            "its .txt is too long (1,048,577 bytes",
        ),
        ({".json": {"boxes": [], "labels": []}, ".txt": None}, "no .txt of this key"),
        ({".json": {"boxes": [], "labels": []}, ".txt": b"\xff"}, "cannot be read"),
    ],
)
def test_a_sample_that_lacks_something_is_a_problem(tmp_path, sample, line):
    good = {".json": {"boxes": [[1, 2, 3, 4]], "labels": [0]}, ".txt": b"t"}
    bad = {
        name: content for name, content in ({".txt": b"t"} | sample).items() if content is not None
    }
    given = scan(tar(tmp_path / "s", [good, bad, good]), **OBJECTS, text=".txt")
    ((path, why),) = given.problems
    assert path == "0.tar/1.jpg" and line in why and len(given) == 2


def test_class_numbers_in_a_shard_with_names_are_a_problem(tmp_path):
    samples = [
        {".json": {"boxes": [[1, 2, 3, 4]] * len(labels), "labels": labels}}
        for labels in ([0], ["dog"], ["dog", 1], [])
    ]
    manifest = scan(tar(tmp_path / "s", samples), **OBJECTS)
    why = (
        "its labels has class numbers, and this shard has class names too; write one of them in all"
    )
    assert (
        manifest.problems == [("0.tar/0.jpg", why), ("0.tar/2.jpg", why)]
        and manifest.classes == ["dog"]
        and len(manifest) == 2
    )


def test_a_text_loses_one_line_end(tmp_path):
    texts = [b"a\n", b"a\r\n", b"a\n\n", b"\na b", b"\n", b""]
    manifest = scan(tar(tmp_path / "s", [{".txt": text} for text in texts]), text=".txt")
    assert manifest.take_texts("text", np.arange(6)) == ["a", "a", "a\n", "\na b", "", ""]


def test_a_negative_label_in_a_shard_is_left_out_and_listed(tmp_path):
    manifest = scan(
        tar(tmp_path / "s", [{".json": {"boxes": [[1, 2, 3, 4]] * 2, "labels": [0, -1]}}]),
        **OBJECTS,
    )
    assert [why for _, why in manifest.dropped] == [
        "its label is negative (object 2: -1); correct it or remove it"
    ]


def test_a_bad_box_in_a_shard_is_left_out_and_listed(tmp_path):
    sample = {".json": {"boxes": [[1, 2, 3, 4], [5, 5, 5, 9]], "labels": [0, 1]}}
    manifest = scan(tar(tmp_path / "s", [sample]), **OBJECTS)
    assert [why for _, why in manifest.dropped] == [
        "its box is empty or inverted (object 2: 5, 5, 5, 9); correct it or remove it"
    ]
    assert (
        scan(tmp_path / "s", **OBJECTS, bad_objects="problem")
        .problems[0][1]
        .startswith("bad object: its box is empty or inverted (object 2: ")
    )


def test_a_mask_of_another_size_is_a_problem(tmp_path):
    manifest = scan(
        tar(tmp_path / "s", [{".png": encoded("L")}, {".png": encoded("L", size=(30, 40))}]),
        mask=".png",
    )
    why = (
        "set annotated='upright' if it shows the image as its EXIF tag turns it, or make them equal"
    )
    assert manifest.problems == [
        (
            "0.tar/1.jpg",
            f"its mask: not of the image's size (30 × 40, and the image is 40 × 30); {why}",
        )
    ]
    assert manifest.labels.shape == (1, 0)


def test_labels_stay_where_there_are_some(tmp_path):
    manifest = scan(
        tar(tmp_path / "s", [{".txt": b"t", ".cls": b"1"}, {".txt": b"u"}]), text=".txt"
    )
    assert manifest.labels.tolist() == [1] and manifest.problems[0][1].startswith(
        "no label, which others have"
    )


def test_classes_of_a_file_are_kept_and_strange_ones_refused(tmp_path):
    folder = tar(tmp_path / "s", [{".json": {"boxes": [[1, 2, 3, 4]], "labels": ["cat"]}}])
    (folder / "classes.json").write_text('["dog", "cat"]')
    assert scan(folder, **OBJECTS).take_objects(np.arange(1)).labels.tolist() == [1]
    (folder / "classes.json").write_text('["dog"]')
    with pytest.raises(ManifestError, match="'cat' of an object is none of the 1 classes"):
        scan(folder, **OBJECTS)
    tar(folder, [{".json": {"boxes": [[1, 2, 3, 4]], "labels": [3]}}], "1.tar")
    with pytest.raises(ManifestError, match="numbers in labels, others names"):
        scan(folder, **OBJECTS)


def test_folders_have_no_targets_and_no_scan_of_them_is_cached(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(ManifestError, match="from_coco or from_masks"):
        scan(tmp_path, text=".txt")
    with pytest.raises(ConfigError, match="not cached"):
        Manifest.scan(tmp_path, targets=Targets(text=".txt"), cache=tmp_path / "m.arrow")


def test_targets_are_not_read_from_tfrecords(tmp_path):
    (tmp_path / "x.tfrecord").write_bytes(b"")
    with pytest.raises(ManifestError, match=r"x\.tfrecord: targets are read from tars and tables"):
        scan(tmp_path, text="caption")


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (
            255,
            (
                r"masks that were looked at have 0 and 255 alone.*only 'ground' would be learned; "
                r"mask_values=\{255: 1\}"
            ),
        ),
        (
            7,
            (
                r"none can be used; its mask: its values include 7 \(.*0\.jpg \(its mask\)\); "
                r".*mask_values=\{7: 1\}"
            ),
        ),
    ],
)
@pytest.mark.parametrize("verify", ["header", "full"])
def test_values_of_masks_in_shards_of_a_store_are_checked_by_a_few_of_them(
    tmp_path, monkeypatch, value, line, verify
):
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    half = Image.new("L", (40, 30))
    half.paste(value, (0, 0, 20, 30))
    file = io.BytesIO()
    half.save(file, "PNG")
    folder = tar(tmp_path / "s", [{".png": file.getvalue()}] * 40)
    asked = []
    monkeypatch.setattr(
        mask_values, "read_object", lambda *place: asked.append(place) or remote.read_object(*place)
    )
    for source in (folder, f"file://{folder}"):
        options = {"classes": ["ground", "cell"], "verify": verify, "progress": False}
        with pytest.raises(ManifestError, match=line):
            Manifest.scan(source, targets=Targets(mask=".png"), **options)
        assert (
            len(
                Manifest.scan(
                    source,
                    targets=Targets(mask=".png", mask_values={value: 1}),
                    strict=True,
                    **options,
                )
            )
            == 40
        )
    assert len(asked) == 2 * 20  # of a store only, and no more than 32 of each scan
