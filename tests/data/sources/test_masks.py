"""Images and masks of the same names, in the layouts that people have, and masks that cannot be
used.
"""

import io
import os
import unicodedata
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dali_pipes import (
    BadSampleError,
    ConfigError,
    EvalTransform,
    Manifest,
    ManifestError,
    Targets,
    TorchConfig,
    build_loader,
)
from dali_pipes.data.image_files.masks import mask_problem
from dali_pipes.data.mask_values import MaskValues

LAYOUTS = {  # an image, a mask, and their folders
    "cityscapes": (
        "leftImg8bit/train/ulm/u_{}_leftImg8bit.png",
        "gtFine/train/ulm/u_{}_gtFine_labelIds.png",
        "leftImg8bit/train",
        "gtFine/train",
    ),
    "ade20k": (
        "images/training/A_{}.jpg",
        "annotations/training/A_{}.png",
        "images/training",
        "annotations/training",
    ),
    "voc": (
        "JPEGImages/2007_{}.jpg",
        "SegmentationClass/2007_{}.png",
        "JPEGImages",
        "SegmentationClass",
    ),
}


def saved(root, path, mode="RGB", size=(8, 6)):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size).save(root / path)


def layout(root, name, images=range(3), masks=range(3)):
    image, mask, first, second = LAYOUTS[name]
    for number in images:
        saved(root, image.format(number))
    for number in masks:
        saved(root, mask.format(number), "L")
        # another one of Cityscapes, or the same
        saved(root, mask.format(number).replace("labelIds", "color"), "P")
    return root / first, root / second


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_image_has_the_mask_of_its_name(tmp_path, name):
    manifest = Manifest.from_masks(*layout(tmp_path, name), classes=["sky", "road"], progress=False)
    image, mask, *_ = LAYOUTS[name]
    assert not manifest.problems and manifest.classes == ["sky", "road"]
    for number in range(3):
        assert manifest.name(number) == str(tmp_path / image.format(number))
        assert str(manifest.mask_extent(number)) == str(tmp_path / mask.format(number))


def test_no_image_is_lost_beside_one_with_a_suffix_one_of_its_name_or_its_masks(tmp_path):
    for name in ("x_leftImg8bit.jpg", "p.jpg", "q.jpg", "q.jpeg"):
        saved(tmp_path, name)
    for name in ("x.png", "p.png", "q.png"):
        saved(tmp_path, f"masks/{name}", "L")
    manifest = Manifest.from_masks(tmp_path, tmp_path / "masks", progress=False)
    assert [manifest.name(number).rsplit("/", 1)[1] for number in range(3)] == [
        "p.jpg",
        "q.jpg",
        "x_leftImg8bit.jpg",
    ]
    assert manifest.problems == [("q.jpeg", "another image has its name and its mask")]


def test_missing_pairs_are_listed_or_passed_over(tmp_path):
    folders = layout(tmp_path, "voc", range(3), range(1, 4))
    manifest = Manifest.from_masks(*folders, progress=False)
    assert manifest.problems == [
        ("JPEGImages/2007_0.jpg", "no mask of its name"),
        ("SegmentationClass/2007_3.png", "a mask without an image of its name"),
    ]
    assert len(manifest) == 2
    skipped = Manifest.from_masks(*folders, missing="skip", progress=False)
    assert len(skipped) == 2 and not skipped.problems


def test_every_image_and_mask_of_one_name_is_accounted_for(tmp_path):
    images, masks = layout(tmp_path, "voc", range(3), range(1, 4))
    saved(tmp_path, "JPEGImages/2007_0.png", "RGB")
    saved(tmp_path, "SegmentationClass/2007_1.bmp", "L")
    saved(tmp_path, "SegmentationClass/2007_3.bmp", "L")

    manifest = Manifest.from_masks(images, masks, progress=False)
    assert len(manifest) == 2
    assert sorted(manifest.problems) == [
        ("JPEGImages/2007_0.jpg", "another image has its name and its mask"),
        ("JPEGImages/2007_0.png", "no mask of its name"),
        ("SegmentationClass/2007_1.bmp", "another mask has its name and its image"),
        ("SegmentationClass/2007_3.bmp", "a mask without an image of its name"),
        ("SegmentationClass/2007_3.png", "a mask without an image of its name"),
    ]

    skipped = Manifest.from_masks(images, masks, missing="skip", progress=False)
    counts = {omission.kind: omission.number for omission in skipped.omissions}
    assert counts["images without a mask"] == 2 and counts["masks without an image"] == 2


@pytest.mark.parametrize("verify", ["header", "full"])
def test_a_mask_that_cannot_be_used_is_named_with_its_image(tmp_path, verify):
    folders = layout(tmp_path, "ade20k", range(5))
    saved(tmp_path, "annotations/training/A_0.png", "L", (6, 8))
    saved(tmp_path, "annotations/training/A_1.png", "RGB")
    (tmp_path / "annotations/training/A_2.png").write_bytes(b"text")
    saved(tmp_path, "annotations/training/A_3.jpg", "L")
    saved(tmp_path, "annotations/training/A_4.png", "P")
    manifest = Manifest.from_masks(*folders, verify=verify, progress=False)
    lines = [
        "not of the image's size",
        "its pixels are RGB",
        "not an image, or broken",
        "JPEG format",
    ]
    assert len(manifest) == 1 and len(manifest.problems) == 4
    for number, ((path, why), line) in enumerate(zip(manifest.problems, lines, strict=True)):
        assert path == f"images/training/A_{number}.jpg"
        assert why.startswith(f"its mask: {line} (annotations/training/A_{number}.")


def png(image, **options):
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file


def test_a_mask_is_accepted_if_its_values_are_read_as_they_are():
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for image, options in (
        (Image.fromarray(values), {}),
        (Image.fromarray(values.astype(np.uint16) * 257), {}),
        (Image.fromarray(values % 2 == 1), {}),
        *(
            (Image.fromarray(values & 2**bits - 1).convert("P"), {"bits": bits})
            for bits in (1, 2, 4, 8)
        ),
    ):
        file = png(image, **options)
        assert mask_problem(file, 16, 16, "full") is None
        assert (np.array(Image.open(file)) == np.array(image)).all()


def test_gray_of_four_bits_is_refused_since_pillow_stretches_it():
    gray = bytearray(
        png(Image.fromarray(np.zeros((4, 4), np.uint8)).convert("P"), bits=4).getvalue()
    )
    gray[25] = 0  # the colour type of the header
    gray[29:33] = zlib.crc32(gray[12:29]).to_bytes(4, "big")
    assert "L;4" in mask_problem(io.BytesIO(bytes(gray)), 4, 4, "header")


def test_a_mask_that_is_cut_off_is_named_with_the_reason():
    data = png(
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8))
    ).getvalue()
    assert mask_problem(io.BytesIO(data[:2000]), 64, 64, "header") is None
    assert mask_problem(io.BytesIO(data[:2000]), 64, 64, "full").startswith(
        "broken (OSError: image file is truncated"
    )


def test_folders_that_make_no_sense_are_refused(tmp_path):
    images, masks = layout(tmp_path, "voc")
    for arguments, line in (
        ((images, images), "folders of their own"),
        ((images, tmp_path / "gone"), "gone: no such folder"),
        ((images, layout(tmp_path / "other", "ade20k")[1]), "no image has a mask of its name"),
    ):
        with pytest.raises(ManifestError, match=line):
            Manifest.from_masks(*arguments, progress=False)
    with pytest.raises(ConfigError, match="missing is 'drop'"):
        Manifest.from_masks(images, masks, missing="drop")


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    folders, original = layout(tmp_path, "ade20k"), os.scandir
    (folders[0] / "more").mkdir()

    def refuses(path):
        if os.fspath(path).endswith("/more"):
            raise PermissionError(13, "Permission denied", path)
        return original(path)

    monkeypatch.setattr(os, "scandir", refuses)
    with pytest.raises(ManifestError, match="more: permission denied; make it readable"):
        Manifest.from_masks(*folders, progress=False)


def test_names_that_are_not_utf8_are_paired_and_kept(tmp_path):
    root, name = tmp_path / os.fsdecode(b"caf\xe9"), os.fsdecode(b"\xff")
    folders = layout(root, "voc")
    saved(root, f"JPEGImages/{name}.jpg")
    saved(root, f"SegmentationClass/{name}.png", "L")
    made = Manifest.from_masks(*folders, progress=False)
    other = Manifest.from_masks(*layout(tmp_path / "other", "voc"), progress=False)
    assert len(made) == 4 and not made.problems

    for file in (tmp_path / "m.arrow", tmp_path / "m.parquet"):
        made.save(file)
        loaded = Manifest.load(file)
        assert loaded.fingerprint == made.fingerprint
        for manifest in (made, loaded, Manifest.concat([loaded, other])):
            assert str(manifest.mask_extent(3)) == str(folders[1] / f"{name}.png")

    paths = {"path": [str(tmp_path / "other/JPEGImages/2007_0.jpg")], "mask": ["2007_0.png"]}
    pq.write_table(pa.table(paths), tmp_path / "t.parquet")
    options = {"root": folders[1], "targets": Targets(mask="mask"), "progress": False}
    absolute = Manifest.from_table(tmp_path / "t.parquet", **options)
    assert str(absolute.mask_extent(0)) == str(folders[1] / "2007_0.png")


@pytest.mark.slow
def test_a_mask_with_a_name_that_is_not_utf8_is_named_in_a_problem(tmp_path):
    folders = images, masks = valued(tmp_path, [0, 1], 40)
    for old, new in (("0", os.fsdecode(b"\xfe")), ("39", os.fsdecode(b"\xff"))):
        (images / f"{old}.jpg").rename(images / f"{new}.jpg")
        (masks / f"{old}.png").rename(masks / f"{new}.png")
    (masks / os.fsdecode(b"\xfe.png")).write_bytes(b"text")
    Image.new("L", (8, 2), 9).save(masks / os.fsdecode(b"\xff.png"))

    made = Manifest.from_masks(*folders, classes=["a", "b"], verify="full", progress=False)
    assert len(made) == 38
    texts = sorted(why for _, why in made.problems)
    assert texts[0].startswith(f"its mask: its values include 9 ({masks}/\\xff.png)")
    assert texts[1] == "its mask: not an image, or broken (masks/\\xfe.png)"


def valued(root, values, count=6):
    """Pairs whose masks have these values, one a row."""
    (root / "masks").mkdir(exist_ok=True)
    for number in range(count):
        saved(root, f"images/{number}.jpg", size=(8, len(values)))
        Image.fromarray(
            np.repeat(np.array(values)[:, None], 8, 1).astype(
                np.uint16 if max(values) > 255 else np.uint8
            )
        ).save(root / f"masks/{number}.png")
    return root / "images", root / "masks"


@pytest.mark.parametrize("verify", ["header", "full"])
def test_masks_of_0_and_255_are_refused_as_nothing_but_the_background_would_be_learned(
    tmp_path, verify
):
    folders = valued(tmp_path, [0, 255])
    with pytest.raises(
        ManifestError,
        match=r"have 0 and 255 alone.*only 'ground' would be learned; mask_values=\{255: 1\}",
    ):
        Manifest.from_masks(*folders, classes=["ground", "cell"], verify=verify, progress=False)
    for becomes in ({255: 1}, {255: 255}):
        manifest = Manifest.from_masks(
            *folders, classes=["ground", "cell"], mask_values=becomes, verify=verify, progress=False
        )
        assert manifest.facts.mask_values == (becomes, True) and len(manifest) == 6


@pytest.mark.parametrize(
    ("values", "becomes"),
    [([255], {}), ([255], {255: 255}), ([65535], {65535: 255}), ([7], {7: 9})],
)
def test_masks_of_which_nothing_would_be_learned_are_refused(tmp_path, values, becomes):
    with pytest.raises(
        ManifestError,
        match="nothing but ignored values is in the 6 masks that were looked at; mask_values says",
    ):
        Manifest.from_masks(
            *valued(tmp_path, values),
            classes=["ground", "cell"],
            mask_values=becomes,
            progress=False,
        )


def test_whoever_says_what_becomes_255_has_said_that_it_is_ignored(tmp_path, caplog):
    folders = valued(tmp_path, [0, 65535])
    assert (
        len(
            Manifest.from_masks(
                *folders, classes=["ground", "cell"], mask_values={65535: 255}, progress=False
            )
        )
        == 6
    )
    assert not caplog.text


def test_masks_of_0_and_255_without_classes_are_warned_of(tmp_path, caplog):
    Manifest.from_masks(*valued(tmp_path, [0, 255]), progress=False)
    assert "have 0 and 255 alone, and 255 is ignored: 6 (" in caplog.text
    assert "mask_values={255: 1}" in caplog.text
    caplog.clear()
    Manifest.from_masks(*valued(tmp_path, [0, 1, 255]), progress=False)
    assert not caplog.text


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            [0, 1, 7],
            (
                r"its values include 7 \(.*0\.png\); the 2 classes are .*; or mask_values=\{7: "
                r"1\} joins 7 to class 1"
            ),
        ),
        ([1, 2], "its values include 2 \\("),
        ([0, 128], "its values include 128 \\("),
        ([0, 65535], "its values include 65535 \\("),
        ([0, 3, 4, 5, 6, 7, 8, 255], "its values include 3, 4, 5, 6, 7, … \\("),
    ],
)
def test_masks_with_values_that_are_no_class_are_refused_with_the_first(tmp_path, values, line):
    folders = valued(tmp_path, values)
    with pytest.raises(
        ManifestError,
        match=r"masks: 6 masks were looked at, and none can be used; its mask: " + line,
    ):
        Manifest.from_masks(*folders, classes=["a", "b"], progress=False)
    becomes = {value: value % 2 for value in values if value > 1}
    assert (
        len(
            Manifest.from_masks(
                *folders, classes=["a", "b"], mask_values=becomes, strict=True, progress=False
            )
        )
        == 6
    )


@pytest.mark.slow
def test_one_mask_with_a_strange_value_is_a_problem_of_its_image(tmp_path):
    folders = valued(tmp_path, [0, 1, 255], 40)
    Image.fromarray(np.full((3, 8), 9, np.uint8)).save(tmp_path / "masks/39.png")
    full = Manifest.from_masks(*folders, classes=["a", "b"], verify="full", progress=False)
    ((path, why),) = full.problems
    assert path == "images/39.jpg" and "its values include 9 (" in why and "39.png)" in why
    assert len(full) == 39
    assert [full.name(each) for each in range(39)] == [
        str(folders[0] / f"{each}.jpg") for each in sorted(map(str, range(39)))
    ]
    full.save(tmp_path / "m.arrow")
    assert Manifest.load(tmp_path / "m.arrow").facts.mask_values == ({}, True)


def test_a_loader_names_the_mask_and_what_would_have_its_value_ignored_there(tmp_path):
    """255 is ignored where a scan does not know better, and not by a transform with another
    ignore_index.
    """
    manifest = Manifest.from_masks(
        *valued(tmp_path, [0, 1, 255]), classes=["a", "b"], progress=False
    )
    transform = EvalTransform(size=8, ignore_index=9)
    with (
        build_loader(
            manifest, TorchConfig(num_workers=0), transform=transform, batch_size=6
        ) as loader,
        pytest.raises(
            BadSampleError,
            match=r"masks/0\.png: its values include 255; .*\{255: 9\} has it ignored",
        ),
    ):
        next(iter(loader))


def test_the_masks_of_a_table_and_of_shards_are_looked_at_as_well(tmp_path):
    valued(tmp_path, [0, 7])
    (tmp_path / "t.csv").write_text(
        "path,mask\n" + "".join(f"images/{each}.jpg,masks/{each}.png\n" for each in range(6))
    )
    targets = Targets(mask="mask")
    with pytest.raises(ManifestError, match="its values include 7"):
        Manifest.from_table(tmp_path / "t.csv", targets=targets, classes=["a", "b"], progress=False)
    made = Manifest.from_table(
        tmp_path / "t.csv",
        targets=Targets(mask="mask", mask_values={7: 1}),
        classes=["a", "b"],
        progress=False,
    )
    assert made.facts.mask_values == ({7: 1}, True) and made.classes == ["a", "b"]
    assert not Manifest.from_table(
        tmp_path / "t.csv", targets=targets, progress=False
    ).facts.mask_values.named


@pytest.mark.parametrize("is_absolute", [False, True])
@pytest.mark.parametrize(
    "written",
    [
        " masks/{}.png ",
        ".\\masks\\{}.png",
        "masks//{}.png",
        unicodedata.normalize("NFD", "é/{}.png"),
    ],
)
def test_the_masks_of_a_table_are_found_however_they_are_written(written, is_absolute, tmp_path):
    valued(tmp_path, [0, 1])
    (tmp_path / "masks").rename(tmp_path / "é") if "masks" not in written else None
    images = f"{tmp_path}/images" if is_absolute else "images"
    rows = [f"{images}/{each}.jpg,{written.format(each)}\n" for each in range(6)]
    (tmp_path / "t.csv").write_text("path,mask\n" + "".join(rows))
    targets = Targets(mask="mask")
    made = Manifest.from_table(tmp_path / "t.csv", targets=targets, strict=True, progress=False)
    assert len(made) == 6
    assert np.asarray(Image.open(str(made.mask_extent(3)))).tolist() == [[0] * 8, [1] * 8]


def test_a_cell_that_no_file_can_be_called_is_a_problem_of_its_row(tmp_path):
    valued(tmp_path, [0, 1])
    masks = ["1 2 " * 200, *[f"masks/{each}.png" for each in range(1, 6)]]
    rows = [f"images/{each}.jpg,{mask}\n" for each, mask in enumerate(masks)]
    (tmp_path / "t.csv").write_text("path,mask\n" + "".join(rows))
    made = Manifest.from_table(tmp_path / "t.csv", targets=Targets(mask="mask"), progress=False)
    assert len(made) == 5 and "name too long" in made.problems[0][1]


def test_classes_that_are_renumbered_are_so_in_masks(tmp_path):
    folders = valued(tmp_path, [0, 1, 2, 255])
    manifest = Manifest.from_masks(*folders, classes=["a", "b", "c"], progress=False)
    merged = manifest.map_classes({"c": "a"})
    assert merged.classes == ["a", "b"] and merged.facts.mask_values.replacements == {2: 0}
    assert manifest.with_classes(["c", "b", "a"]).facts.mask_values.replacements == {0: 2, 2: 0}
    again = manifest.with_classes(["c", "b", "a"]).with_classes(["a", "b", "c"]).facts.mask_values
    image = np.array([[0, 1, 2, 255]], np.uint8)
    assert again.decode(png(Image.fromarray(image))).tolist() == image.tolist()
    with pytest.raises(ManifestError, match="none of the 2 given as classes"):
        manifest.with_classes(["a", "b"])
    assert len(Manifest.concat([manifest, manifest])) == 12
    with pytest.raises(ManifestError, match="the values of their masks mean different classes"):
        Manifest.concat([manifest, manifest.map_classes({"a": "x"}).with_classes(["c", "b", "x"])])


@pytest.mark.parametrize("becomes", [{255: -1}, {-1: 0}, {"a": 1}, {1: 0.5}, {True: 1}, [1, 2]])
def test_values_that_are_no_numbers_are_refused(tmp_path, becomes):
    with pytest.raises(ConfigError, match="mask_values is"):
        Manifest.from_masks(*valued(tmp_path, [0, 1]), mask_values=becomes, progress=False)
    with pytest.raises(ConfigError, match="mask_values is"):
        Targets(mask="m", mask_values=becomes)


@pytest.mark.parametrize("mode", ["1", "L", "P", "I;16"])
@pytest.mark.parametrize("becomes", [{}, {1: 0}, {1: 0, 0: 1}, {1: 300}, {70000: 1}])
def test_values_are_replaced_at_once(mode, becomes):
    values = np.array([[0, 1, 1, 0]], np.uint8)
    image = (
        Image.fromarray(values * 255).convert("1")
        if mode == "1"
        else Image.fromarray(values.astype(np.uint16))
    )
    image = (
        Image.fromarray(values).convert("P")
        if mode == "P"
        else Image.fromarray(values)
        if mode == "L"
        else image
    )
    found = MaskValues(becomes, False).decode(png(image))
    assert found.tolist() == [[becomes.get(value, value) for value in values[0].tolist()]]
