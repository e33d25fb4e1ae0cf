"""Further images in tables: what is read, what is a problem, and what is kept."""

import zlib
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageOps

import dali_pipes as dp
from dali_pipes.data.image_files.target_images import (
    decode_target_image,
    place_of,
    target_image_problem,
)
from dali_pipes.data.omissions import describe
from dali_pipes.tools.preparation.run import _check

IMAGES = {"depth": "depth_path"}


@pytest.fixture
def folder(tmp_path):
    """Eight images and their depth maps; each odd one is turned by its EXIF tag."""
    rows = ["path,label,depth_path"]
    for number in range(8):
        exif = Image.Exif()
        exif[0x0112] = 6 if number % 2 else 1
        Image.new("RGB", (60, 40)).save(tmp_path / f"{number}.jpg", exif=exif)
        Image.new("I;16", (60, 40), number).save(tmp_path / f"depth_{number}.png")
        rows.append(f"{number}.jpg,{number % 2},depth_{number}.png")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    return tmp_path


def scan(folder, annotated="stored", **options):
    targets = dp.Targets(images=IMAGES, annotated=annotated)
    return dp.Manifest.from_table(folder / "pairs.csv", targets=targets, progress=False, **options)


def names(manifest):
    return [
        manifest.target_image_extent("depth", at).file.rpartition("/")[2]
        for at in range(len(manifest))
    ]


def test_a_manifest_keeps_them_through_all_that_makes_another(folder, tmp_path):
    manifest = scan(folder)
    assert manifest.target_images == ["depth"] and "depth_path" not in manifest.columns
    assert names(manifest) == [f"depth_{number}.png" for number in range(8)]
    for file in ("m.arrow", "m.parquet"):
        manifest.save(tmp_path / file)
        loaded = dp.Manifest.load(tmp_path / file)
        loaded.verify()
        assert names(loaded) == names(manifest) and loaded.fingerprint == manifest.fingerprint
    assert names(manifest.subset(np.array([5, 2]))) == ["depth_5.png", "depth_2.png"]
    assert names(manifest.filter("label == 1")) == [
        f"depth_{number}.png" for number in (1, 3, 5, 7)
    ]
    assert manifest.without_columns(["depth"]).target_images == []


def test_where_no_image_is_is_refused(folder):
    manifest = scan(folder)
    for sample_id in (-1, 8, 4.5, None, "a"):
        with pytest.raises(dp.ConfigError, match=r"sample_id is .*; it takes whole numbers from 0"):
            manifest.target_image_extent("depth", sample_id)
    for name in ("dept", None, 3):
        with pytest.raises(dp.ConfigError, match=r"name is .*; the further images are: depth"):
            manifest.target_image_extent(name, 0)


def test_joined_sets_of_two_folders_find_their_files(folder, tmp_path):
    (tmp_path / "other").mkdir()
    for file in [*folder.glob("*.jpg"), *folder.glob("*.png"), *folder.glob("*.csv")]:
        (tmp_path / "other" / file.name).write_bytes(file.read_bytes())
    joined = dp.Manifest.concat([scan(folder), scan(tmp_path / "other")])
    paths = [joined.target_image_extent("depth", at).file for at in (0, 8)]
    assert paths == [str(folder / "depth_0.png"), str(tmp_path / "other/depth_0.png")]
    plain = dp.Manifest.from_table(folder / "pairs.csv", progress=False).without_columns(
        ["depth_path"]
    )
    with pytest.raises(dp.ManifestError, match="only some of the manifests have depth; join those"):
        dp.Manifest.concat([scan(folder), plain])


def test_another_depth_map_is_another_fingerprint(folder):
    before = scan(folder).fingerprint
    table = (folder / "pairs.csv").read_text()
    (folder / "pairs.csv").write_text(table.replace("depth_3.png", "depth_4.png"))
    assert scan(folder).fingerprint != before


def test_absolute_paths_are_found(folder):
    table = (folder / "pairs.csv").read_text()
    (folder / "pairs.csv").write_text(table.replace("depth_3.png", str(folder / "depth_3.png")))
    manifest = scan(folder)
    assert len(manifest) == 8 and names(manifest)[3] == "depth_3.png"


def test_faults_are_problems_of_single_images(folder):
    (folder / "depth_0.png").unlink()
    Image.new("I;16", (30, 40)).save(folder / "depth_1.png")
    (folder / "depth_2.png").write_bytes(b"none")
    (folder / "depth_3.png").write_bytes((folder / "depth_3.png").read_bytes()[:50])
    Image.new("L", (60, 40)).save(folder / "depth_4.png", "GIF")
    Image.new("I;16", (120, 80)).save(folder / "depth_5.png")
    table = (folder / "pairs.csv").read_text()
    (folder / "pairs.csv").write_text(table.replace("depth_7.png", ""))
    manifest = scan(folder, verify="full")
    assert names(manifest) == ["depth_5.png", "depth_6.png"]
    assert manifest.problems == [
        ("0.jpg", "its target depth, depth_0.png: no such file or directory (row 1)"),
        (
            "1.jpg",
            "its target depth, depth_1.png: 30 × 40, and the image is 60 × 40 (row 2); make them "
            "equal, or the former 2 to 16 times as large",
        ),
        ("2.jpg", manifest.problems[2][1]),
        ("3.jpg", manifest.problems[3][1]),
        ("4.jpg", manifest.problems[4][1]),
        ("7.jpg", "no depth (row 8); name its file, or remove the row"),
    ]
    assert manifest.problems[2][1] == (
        "its target depth, depth_2.png: not an image, or broken (row 3)"
    )
    assert manifest.problems[3][1].startswith("its target depth, depth_3.png: broken (")
    assert "GIF format (row 5); save it as PNG, JPEG or TIFF" in manifest.problems[4][1]
    text = describe(manifest.root, len(manifest), manifest.omissions)
    assert "its target depth: no such file" in text and "depth_0.png" not in text


def test_colors_of_16_bits_are_a_problem_since_pillow_keeps_half_of_them(folder):
    def chunk(kind, data):
        content = kind + data
        return len(data).to_bytes(4) + content + zlib.crc32(content).to_bytes(4)

    rows = b"".join(b"\0" + bytes(60 * 6) for _ in range(40))
    header = (60).to_bytes(4) + (40).to_bytes(4) + bytes([16, 2, 0, 0, 0])
    data = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (folder / "depth_2.png").write_bytes(b"\x89PNG\r\n\x1a\n" + data)
    ((path, why),) = scan(folder).problems
    assert path == "2.jpg"
    assert why.endswith("depth_2.png: colors of 16 bits (row 3); save it with 8 bits a channel")


def tiff(bits, channels, planes, kind, data):
    """A TIFF of 60 × 40 pixels: little-endian, not compressed; `kind` 1 is unsigned, 2 signed."""
    strips = channels if planes else 1
    length, start = len(data) // strips, 8
    arrays, entries = bytearray(b"II*\0" + bytes(4) + data), []

    def add(tag, size, values):
        packed = b"".join(value.to_bytes(size, "little") for value in values)
        if len(packed) > 4:
            arrays.extend(packed)
            packed = (len(arrays) - len(packed)).to_bytes(4, "little")
        numbers = (tag, 2), (4 if size == 4 else 3, 2), (len(values), 4)
        head = b"".join(number.to_bytes(width, "little") for number, width in numbers)
        entries.append(head + packed.ljust(4, b"\0"))

    for tag, value in ((256, [60]), (257, [40]), (258, [bits] * channels), (259, [1])):
        add(tag, 2, value)
    add(262, 2, [2 if channels == 3 else 1])
    add(273, 4, [start + strip * length for strip in range(strips)])
    add(277, 2, [channels])
    add(278, 2, [40])
    add(279, 4, [length] * strips)
    add(284, 2, [2 if planes else 1])
    add(339, 2, [kind] * channels)
    arrays[4:8] = len(arrays).to_bytes(4, "little")
    count = len(entries).to_bytes(2, "little")
    return bytes(arrays) + count + b"".join(entries) + bytes(4)


COLORS_OF_16_BITS = {
    "TIFF": tiff(16, 3, False, 1, bytes(60 * 40 * 6)),
    "TIFF, plane after plane": tiff(16, 3, True, 1, bytes(60 * 40 * 6)),
    "PPM": b"P6 60 40 65535\n" + bytes(60 * 40 * 6),
    "PPM of 10 bits": b"P6 60 40 1023\n" + bytes(60 * 40 * 6),
    "PPM of text": b"P3 60 40 1023\n" + b"0 " * (60 * 40 * 3),
}


@pytest.mark.parametrize("kind", COLORS_OF_16_BITS)
def test_colors_of_more_than_8_bits_are_a_problem_in_every_format(kind):
    place = place_of(40, 60, 1, False)
    why = target_image_problem(BytesIO(COLORS_OF_16_BITS[kind]), place, "header")
    assert why == "colors of 16 bits; save it with 8 bits a channel"
    eight = (tiff(8, 3, True, 1, bytes(60 * 40 * 3)), b"P6 60 40 100\n" + bytes(60 * 40 * 3))
    for data in eight:
        assert target_image_problem(BytesIO(data), place, "full") is None


def test_what_is_white_is_what_the_file_can_hold():
    """Of 12 and 16 bits; signed integers and 32 bits say nothing."""
    for bits, kind, value, white in (
        (12, 1, 0xFFF, 4095),
        (16, 1, 0xFFFF, 65535),
        (16, 2, -1, 1),
        (32, 2, -1, 1),
        (32, 1, 0x7FFFFFFF, 1),
    ):
        word = (value % 2**bits).to_bytes(4, "little")[: bits // 8]
        data = b"\xff" * (60 * 40 * 12 // 8) if bits == 12 else word * (60 * 40)
        values, found = decode_target_image(BytesIO(tiff(bits, 1, False, kind, data)), 1)
        assert (values == np.float32(value)).all() and found == white


def test_unsigned_integers_that_pillow_reads_as_negative_are_a_problem():
    file = tiff(32, 1, False, 1, b"\xff" * (60 * 40 * 4))
    place, why = place_of(40, 60, 1, False), "2,147,483,648 on, which are read as negative"
    assert why in str(target_image_problem(BytesIO(file), place, "full"))
    with pytest.raises(ValueError, match=why):
        decode_target_image(BytesIO(file), 1)


def test_turned_images_are_warned_of_until_the_option_says_how_targets_are_made(folder, caplog):
    exif = Image.Exif()
    exif[0x0112] = 3  # the size does not show it
    Image.new("RGB", (60, 40)).save(folder / "0.jpg", exif=exif)
    scan(folder, annotated=None)
    assert "0.jpg" in caplog.text and "annotated" in caplog.text
    caplog.clear()
    assert len(scan(folder)) == 8 and not caplog.text
    upright = scan(folder, annotated="upright")
    assert len(upright) == 4 and "set annotated='stored' if it sh" in upright.problems[0][1]
    for number in (1, 3, 5, 7):
        Image.new("I;16", (40, 60), number).save(folder / f"depth_{number}.png")
    assert len(scan(folder, annotated="upright")) == 8
    assert "set annotated='upright'" in scan(folder).problems[0][1]


def test_upright_targets_are_moved_as_their_turned_images(folder):
    """`exif=apply` turns the image, and "stored" the target with it; one that is upright stays."""
    rng = np.random.default_rng(0)
    for number in range(8):
        pixels, exif = rng.integers(0, 256, (40, 60, 3), dtype=np.uint8), Image.Exif()
        exif[0x0112] = 1 + number
        Image.fromarray(pixels).save(folder / f"{number}.png", exif=exif)
        turned = Image.open(folder / f"{number}.png")
        Image.fromarray(pixels).save(folder / f"stored_{number}.png")
        ImageOps.exif_transpose(turned).save(folder / f"upright_{number}.png", exif=b"")
    for annotated in ("stored", "upright"):
        rows = [f"{number}.png,0,{annotated}_{number}.png" for number in range(8)]
        (folder / "pairs.csv").write_text("\n".join(["path,label,depth_path", *rows]))
        manifest = scan(folder, annotated=annotated)
        for exif in ("apply", "ignore"):
            transform = dp.TrainTransform(
                size=32, exif=exif, dtype="uint8", target_images={"depth": {"dtype": "uint8"}}
            )
            with dp.build_loader(
                manifest, dp.TorchConfig(num_workers=0), transform=transform, batch_size=8
            ) as loader:
                for batch in loader:
                    assert np.array_equal(batch["depth"], batch.images)


REFUSED = {
    "a taken name": ({"mask": "a"}, "images has 'mask', and that is something else in a batch"),
    "no name": ({"a b": "c"}, "images has 'a b', and that is no name"),
    "no mapping": (["depth"], "it takes columns of paths by the names that batches have"),
    "no column": ({"depth": None}, "it takes columns of paths by the names that batches have"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_names_that_cannot_be_are_refused(case):
    images, why = REFUSED[case]
    with pytest.raises(dp.ConfigError, match=why):
        dp.Targets(images=images)


def test_a_column_that_is_missing_is_named(folder):
    with pytest.raises(dp.ManifestError, match="dpth"):
        targets = dp.Targets(images={"depth": "dpth"})
        dp.Manifest.from_table(folder / "pairs.csv", targets=targets, progress=False)


def test_other_sources_refuse_them(folder):
    for source in (folder, folder / "coco.json"):
        (folder / "coco.json").write_text('{"images": [], "annotations": [], "categories": []}')
        with pytest.raises(
            dp.ManifestError, match="only a CSV or Parquet table of paths has these"
        ):
            dp.Manifest.open(source, targets=dp.Targets(images=IMAGES), progress=False)


def test_preparation_does_not_lose_them_without_a_word(folder, tmp_path):
    for to in ("folder", "shards"):
        with pytest.raises(
            dp.ConfigError, match=r"further images are not prepared.*drop=\[depth\]"
        ):
            _check(scan(folder), folder / "pairs.csv", tmp_path / "out", to)
