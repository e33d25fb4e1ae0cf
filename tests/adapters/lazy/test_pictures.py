"""Pillow's pictures wait, and a program cannot tell."""

import copy
import os
import pickle
import struct
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from PIL import (
    Image,
    ImageEnhance,
    ImageFilter,
    ImageOps,
)

from dali_pipes.adapters.lazy.patching import patched
from dali_pipes.adapters.lazy.pictures import finish, is_lazy, recipe_of
from dali_pipes.adapters.lazy.recipes import Changed
from dali_pipes.adapters.lazy.state import PROCESS, eager, sending, waiting

# programs that look at headers alone leave files open
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file")
OLD = 1_600_000_000  # when the files of these tests were written, in seconds


def noise(mode="RGB", size=(60, 50), seed=0):
    bands = len(Image.new(mode, (1, 1)).getbands())
    values = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], bands), np.uint8)
    values //= 2
    values += np.linspace(0, 120, size[0]).astype(np.uint8)[None, :, None]
    return Image.frombytes(mode, size, values.tobytes())


def chunk(kind, data):
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png(size, bits, colors, rows, *more):
    """A PNG of raw rows, as Pillow does not write it; chunks of `more` come after the pixels."""
    header = struct.pack(">IIBBBBB", *size, bits, colors, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    half = len(data) // 2
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", data[:half]), chunk(b"IDAT", data[half:])]
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, *more, chunk(b"IEND", b"")])


def exif(turn):
    made = Image.Exif()
    made[0x0112] = turn
    return made


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Paths of encoded pictures by what is special in them, all of them old."""
    folder = tmp_path_factory.mktemp("pictures")
    paths = {}

    def save(name, picture, **options):
        paths[name] = str(folder / name)
        picture.save(paths[name], **options)

    def write(name, data):
        paths[name] = str(folder / name)
        Path(paths[name]).write_bytes(data)

    save("rgb.jpg", noise(), dpi=(72, 72))
    save("other.jpg", noise(seed=1), quality=95)
    save("large.jpg", noise(size=(320, 240)), quality=95)
    save("gray.jpg", noise("L"))
    save("cmyk.jpg", noise("CMYK"))
    save(
        "progressive.jpg", noise(size=(320, 240)), quality=95, progressive=True, comment=b"\xff\xd9"
    )
    save("turned.jpg", noise(), exif=exif(6))
    save("mirrored.jpg", noise(), exif=exif(4))
    save("rgb.png", noise(), dpi=(72, 72))
    save("gray.png", noise("L"))
    save("rgba.png", noise("RGBA"))
    save("la.png", noise("LA"))
    save("bits.png", noise("L").convert("1"))
    save("palette.png", noise().quantize(40))
    save("clear.png", noise(), transparency=(5, 5, 5))
    save("clear_palette.png", noise().quantize(40), transparency=3)
    save("turned.png", noise(), exif=exif(8))
    save("frames.png", noise(), save_all=True, append_images=[noise(seed=2), noise(seed=3)])
    save("still.gif", noise().quantize(40))
    save("rgb.bmp", noise())
    save("rgb.webp", noise())

    rows = [np.random.default_rng(row).bytes(6 * 60) for row in range(50)]
    write("deep.png", png((60, 50), 16, 2, rows))
    write("deep_gray.png", png((180, 50), 16, 0, rows))
    late = [chunk(b"tEXt", b"late\0text"), chunk(b"eXIf", exif(3).tobytes()[6:])]
    late += [chunk(b"prVt", b"private")]
    rows = [np.random.default_rng(row).bytes(3 * 60) for row in range(50)]
    write("late.png", png((60, 50), 8, 2, rows, *late))
    write("broken_late.png", png((60, 50), 8, 2, rows)[:-12] + b"\0\0\0\x09tEXtab")

    large = Path(paths["large.jpg"]).read_bytes()
    write("truncated.jpg", large[:70_000])
    write("truncated_small.jpg", Path(paths["rgb.jpg"]).read_bytes()[:1200])
    write("followed.jpg", large + bytes(200_000))
    write("doubled.jpg", Path(paths["rgb.jpg"]).read_bytes() + large)
    write("truncated.png", Path(paths["rgb.png"]).read_bytes()[:5000])
    write("no.jpg", b"this is no picture at all")
    for path in paths.values():
        os.utime(path, (OLD, OLD))
    return paths


@pytest.fixture(autouse=True)
def fresh():
    PROCESS.failed, PROCESS.opened = None, 0
    PROCESS.seen.clear()
    yield
    assert PROCESS.failed is None or isinstance(PROCESS.failed, OSError | SyntaxError)


@pytest.fixture
def lazy():
    """In a test with it pictures wait."""
    with patched(), waiting(True):
        yield


def describe(value):
    """All that a program sees of it, pixels last."""
    if isinstance(value, Image.Image):
        names = ("filename", "text", "layers", "n_frames", "encoderinfo", "decoderconfig", "tile")
        own = {name: getattr(value, name, None) for name in names}
        exif = dict(value.getexif())
        palette = value.palette and (value.palette.mode, bytes(value.palette.palette))
        about = (value.mode, value.size, value.info, value.format, palette)
        return type(value), about, own, exif, value.getbands(), value.tobytes()
    if isinstance(value, (list, tuple)):
        return [describe(each) for each in value]
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, value.numpy().tobytes()
    return value


def outcome(program, *args):
    """What a program makes, its error, and what it was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            made = describe(program(*args))
        except Exception as error:
            made = type(error), str(error).replace(hex(id(error)), "")
    return made, [
        (each.category, str(each.message))
        for each in caught
        if each.category is not ResourceWarning
    ]


def words(text):
    return text.split()


NAMES = words("""
    rgb.jpg gray.jpg cmyk.jpg progressive.jpg turned.jpg rgb.png gray.png
    rgba.png la.png bits.png palette.png clear.png clear_palette.png turned.png
    frames.png still.gif rgb.bmp rgb.webp deep.png deep_gray.png late.png
    broken_late.png truncated.jpg truncated_small.jpg followed.jpg doubled.jpg truncated.png no.jpg
""")
STEPS = {
    "nothing": lambda picture: picture,
    "load": lambda picture: (picture.load(), picture)[1],
    "pixel": lambda picture: picture.load()[3, 4],
    "copy": lambda picture: picture.copy(),
    "convert": lambda picture: picture.convert(),
    "convert_rgb": lambda picture: picture.convert("RGB"),
    "convert_gray": lambda picture: picture.convert("L"),
    "convert_gray_rgb": lambda picture: picture.convert("L").convert("RGB"),
    "convert_rgba": lambda picture: picture.convert("RGBA"),
    "crop": lambda picture: picture.crop((5, 6, 50, 40)),
    "crop_outside": lambda picture: picture.crop((-5.4, 6, 150, 40.5)),
    "crop_all": lambda picture: picture.crop((0, 0, *picture.size)),
    "crop_wrong": lambda picture: picture.crop((50, 40, 5, 6)),
    "resize": lambda picture: picture.resize((33, 44)),
    "resize_array": lambda picture: picture.resize(np.array([33, 44]), Image.NEAREST),
    "resize_same": lambda picture: picture.resize(picture.size, Image.LANCZOS),
    "resize_box": lambda picture: picture.resize((33, 44), box=(3.5, 4, 40, 45)),
    "resize_gap": lambda picture: picture.resize((8, 9), Image.BICUBIC, reducing_gap=2.0),
    "resize_nothing": lambda picture: picture.resize((0, 44)),
    **{f"transpose_{at}": lambda picture, at=at: picture.transpose(at) for at in range(7)},
    "rotate": lambda picture: picture.rotate(30, Image.BILINEAR, expand=True, fillcolor=3),
    "rotate_90": lambda picture: picture.rotate(90, expand=True),
    "affine": lambda picture: picture.transform((40, 50), Image.AFFINE, (1, 0.1, 2, 0, 1.2, -3)),
    "perspective": lambda picture: picture.transform(
        (40, 50),
        Image.PERSPECTIVE,
        [1, 0.1, 2, 0, 1.2, -3, 0.001, 0.002],
        Image.BICUBIC,
        fillcolor="red",
    ),
    "point": lambda picture: picture.point(lambda value: value * 0.7 + 20),
    "point_list": lambda picture: picture.point(
        [255 - at for at in range(256)] * len(picture.mode)
    ),
    "point_over": lambda picture: picture.point(lambda value: value * 3),
    "filter": lambda picture: picture.filter(ImageFilter.GaussianBlur(2)),
    "filter_class": lambda picture: picture.filter(ImageFilter.SHARPEN),
    "filter_wrong": lambda picture: picture.filter("sharp"),
    "thumbnail": lambda picture: (picture.thumbnail((30, 30)), picture)[1],
    "thumbnail_later": lambda picture: (picture.load(), picture.thumbnail((30, 30)), picture)[2],
    "thumbnail_copy": lambda picture: (
        other := picture.copy(),
        other.thumbnail((30, 99), 2),
        other,
    )[2],
    "draft_resize": lambda picture: (
        picture.draft("RGB", (60, 60)),
        picture.convert("RGB").resize((9, 9)),
    )[1],
    "getbbox": lambda picture: picture.getbbox(),
    "exif_transpose": lambda picture: ImageOps.exif_transpose(picture),
    "autocontrast": lambda picture: ImageOps.autocontrast(picture),
    "autocontrast_cut": lambda picture: ImageOps.autocontrast(picture, 2),
    "equalize": lambda picture: ImageOps.equalize(picture),
    "invert": lambda picture: ImageOps.invert(picture),
    "posterize": lambda picture: ImageOps.posterize(picture, 3),
    "solarize": lambda picture: ImageOps.solarize(picture, 99),
    "fit": lambda picture: ImageOps.fit(picture, (40, 40)),
    "pad": lambda picture: ImageOps.pad(picture, (40, 40)),
    "expand": lambda picture: ImageOps.expand(picture, 3, 7),
    **{
        f"enhance_{kind.__name__}": lambda picture, kind=kind: [
            kind(picture).enhance(factor) for factor in (0, 0.5, 1, 1.7)
        ]
        for kind in (
            ImageEnhance.Color,
            ImageEnhance.Contrast,
            ImageEnhance.Brightness,
            ImageEnhance.Sharpness,
        )
    },
    "degenerate": lambda picture: (
        (enhancer := ImageEnhance.Color(picture)).degenerate,
        enhancer.enhance(0.3),
        enhancer.image,
    ),
    "hue": lambda picture: F.adjust_hue(picture, 0.2),
    "gray_3": lambda picture: F.to_grayscale(picture, 3),
    "pad_edge": lambda picture: F.pad(picture, [1, 2, 3, 4], padding_mode="edge"),
    "pad_fill": lambda picture: F.pad(picture, 3, fill=(1, 2, 3)),
    "to_tensor": lambda picture: F.to_tensor(picture),
    "pil_to_tensor": lambda picture: F.pil_to_tensor(picture),
    "pickle": lambda picture: pickle.loads(pickle.dumps(picture)),
    "deepcopy": lambda picture: copy.deepcopy(picture),
    "copy_module": lambda picture: copy.copy(picture),
    "verify": lambda picture: picture.verify(),
    "seek": lambda picture: (picture.seek(0), picture.tell(), picture)[2],
    "paste": lambda picture: (
        made := Image.new("RGB", (99, 99), (5, 6, 7)),
        made.paste(picture.convert("RGB"), (3, 4)),
        made,
    )[2],
    "paste_beyond": lambda picture: (
        made := Image.new("L", (40, 30), 9),
        made.paste(picture.convert("L"), (-3, 4)),
        made,
    )[2],
    "paste_number": lambda picture: (
        made := Image.new("RGB", (80, 70), 300),
        made.paste(picture.convert("RGB"), (0, 0, *picture.size)),
        made,
    )[2],
    "paste_over": lambda picture: (
        made := Image.new("RGB", (80, 70), "red"),
        made.putpixel((70, 60), (1, 2, 3)),
        made.paste(picture.convert("RGB")),
        made,
    )[3],
    "paste_twice": lambda picture: (
        made := Image.new("RGB", (80, 70)),
        made.paste(picture.convert("RGB")),
        made.paste(picture.convert("RGB"), (9, 20)),
        made,
    )[3],
    "putalpha": lambda picture: (made := picture.convert("RGB"), made.putalpha(99), made)[2],
    "write_pixels": lambda picture: (
        made := picture.convert("RGB"),
        access := made.load(),
        access.__setitem__((2, 3), (9, 8, 7)),
        made,
    )[3],
    "info_changed": lambda picture: (
        picture.info.__setitem__("mine", [1]),
        made := picture.copy(),
        made.info["mine"].append(2),
        made,
    )[3],
}


USUAL = ("rgb.jpg", "gray.jpg", "rgba.png", "clear.png")


def run(step, path, opened):
    if opened == "path":
        return STEPS[step](Image.open(path))
    with open(path, "rb") as file:
        made = STEPS[step](Image.open(file))
        at = None if file.closed else file.tell()
        made = describe(made)  # what still wants pixels must not find the file at another place
        return made, at, file.closed or file.tell()


def compare(step, path, opened):
    true = outcome(run, step, path, opened)
    with patched(), waiting(True):
        found = outcome(run, step, path, opened)
    PROCESS.failed = None
    assert found == true


@pytest.mark.few
@pytest.mark.parametrize("step", STEPS)
def test_no_step_tells_a_program_that_pictures_wait(files, step):
    for name in USUAL:
        compare(step, files[name], "path")


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "opened"),
    # where a file of two pictures is left is not known (`_end_of_jpeg`)
    [(name, "path") for name in NAMES]
    + [(name, "file") for name in NAMES if name != "doubled.jpg"],
)
def test_no_file_tells_a_program_that_pictures_wait(files, name, opened):
    for step in words("load pixel convert_rgb crop thumbnail draft_resize exif_transpose pickle"):
        compare(step, files[name], opened)


WAITING = words("""
    load copy convert convert_rgb convert_gray convert_gray_rgb crop crop_outside crop_all
    resize resize_array resize_same rotate rotate_90 affine perspective
    point point_list draft_resize
    exif_transpose autocontrast equalize invert posterize solarize hue gray_3 pad_edge
    pad_fill pad expand paste paste_beyond paste_number deepcopy copy_module info_changed
""")
WAITING += [f"transpose_{at}" for at in range(7)]


@pytest.mark.parametrize("step", WAITING)
def test_pixels_wait_after(files, lazy, step):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = STEPS[step](Image.open(files["turned.jpg"]))
    assert is_lazy(made) and made._im is None
    assert not PROCESS.seen and PROCESS.opened == 1
    made.getpixel((0, 0))
    assert not is_lazy(made) and PROCESS.seen.total() == 1


def test_only_formats_that_backends_decode_wait(files, lazy):
    def waits(name):
        picture = Image.open(files[name])
        picture.load()
        waits = is_lazy(picture)
        picture.close()
        return waits

    names = set(NAMES) - {"no.jpg", "broken_late.png"} - {name for name in NAMES if "trunc" in name}
    waiting = {name for name in names if waits(name)}
    assert names - waiting == set(
        words("""
            bits.png palette.png clear_palette.png frames.png still.gif rgb.bmp rgb.webp
            deep_gray.png
        """)
    )
    assert PROCESS.opened == len(names)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("rgb.jpg", "RGB"),
        ("gray.jpg", "L"),
        ("cmyk.jpg", "CMYK"),
        ("rgba.png", "RGBA"),
        ("clear.png", "RGB;transparency"),
        ("deep.png", "RGB;16B"),
    ],
)
def test_a_recipe_has_the_mode_that_is_in_the_file(files, lazy, name, mode):
    recipe = recipe_of(Image.open(files[name]).convert("L"))
    if name == "clear.png":  # of which Pillow finds a new transparent color
        assert recipe is None
        recipe = recipe_of(Image.open(files[name]).crop((1, 2, 3, 4)))
    assert recipe.mode == mode and recipe.source.path == files[name]


def test_arguments_are_noted_as_they_are_meant(files, lazy):
    picture = Image.open(files["rgb.jpg"]).convert("RGB")
    made = picture.crop((1.4, 2.6, np.int64(30), 40)).resize(
        np.array([9, 8]), Image.Resampling.NEAREST
    )
    made = made.transpose(Image.Transpose.ROTATE_90).rotate(10)
    notes = recipe_of(made).notes
    assert notes[:3] == (
        ("crop", ((1, 3, 30, 40),), {}),
        ("resize", ((9, 8), 0), {}),
        ("transpose", (2,), {}),
    )
    assert notes[3][0] == "transform"
    assert type(notes[2][1][0]) is int and all(type(each) is int for each in notes[1][1][0])


def test_a_changed_mode_is_pillows(files, lazy):
    """`remap_palette` calls a copy one with a palette before it looks at its pixels."""
    picture = Image.open(files["gray.jpg"]).copy()
    with eager():
        true = Image.open(files["gray.jpg"]).copy().remap_palette(list(range(255, -1, -1)))
    assert describe(picture.remap_palette(list(range(255, -1, -1)))) == describe(true)


# What a program does with its files


def test_a_closed_file_is_pillows_error(files, lazy):
    with open(files["rgb.jpg"], "rb") as file:
        picture = Image.open(file)
    with pytest.raises(ValueError, match="closed file"):
        picture.convert("RGB")
    with Image.open(files["rgb.jpg"]) as picture:
        pass
    with pytest.raises((AssertionError, AttributeError, ValueError)):
        picture.load()


def test_a_file_is_left_where_pillow_leaves_it(files):
    """Also one that is larger than a block of what Pillow reads at once."""

    def places(name):
        with open(files[name], "rb") as file:
            picture = Image.open(file)
            yield file.tell()
            picture.load()
            yield file.tell()
            yield file.read(5)
            yield picture.convert("RGB").getpixel((1, 1)), file.tell()

    for name in ("rgb.jpg", "large.jpg", "progressive.jpg", "followed.jpg", "rgb.png", "late.png"):
        true = list(places(name))
        with patched(), waiting(True):
            assert list(places(name)) == true, name


@pytest.fixture
def own(files, tmp_path):
    """A picture's file, which a test may change."""
    path = tmp_path / "own.jpg"
    path.write_bytes(Path(files["rgb.jpg"]).read_bytes())
    os.utime(path, (OLD, OLD))
    return path


def test_a_file_that_changes_is_noticed(files, lazy, own):
    made = Image.open(own).convert("L")
    own.write_bytes(Path(files["other.jpg"]).read_bytes())
    with pytest.raises(Changed, match="has changed"):
        made.tobytes()
    assert isinstance(PROCESS.failed, Changed)


def test_a_young_file_is_kept(files, lazy, own):
    own.write_bytes(Path(files["rgb.jpg"]).read_bytes())
    made = Image.open(own).convert("RGB")
    own.write_bytes(Path(files["other.jpg"]).read_bytes())
    with eager():
        assert made.tobytes() == Image.open(files["rgb.jpg"]).tobytes()


# Limits


def test_large_pictures_warn_and_fail_as_ever(files, lazy, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 2000)
    with pytest.warns(Image.DecompressionBombWarning):
        picture = Image.open(files["rgb.jpg"])
    with pytest.warns(Image.DecompressionBombWarning):
        picture.crop((0, 0, 50, 49))
    with pytest.raises(Image.DecompressionBombError):
        picture.crop((0, 0, 100, 100))
    with pytest.warns(Image.DecompressionBombWarning):
        made = Image.open(files["rgb.jpg"]).crop((0, 0, 40, 40))

    # where the pixels are made there may be another limit
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    assert is_lazy(made)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(made.tobytes()) == 40 * 40 * 3


# Threads, processes, copies


@pytest.mark.parametrize("name", ["turned.jpg", "late.png", "rgba.png"])
def test_a_picture_is_sent_as_it_is(files, lazy, name):
    """And needs no patch where it arrives; others who pickle it get pixels."""
    picture = Image.open(files[name])
    picture.load()
    made = [picture, picture.convert("RGB").resize((20, 30))]
    with sending():
        data = pickle.dumps(made)
    assert len(data) < 5000 and all(map(is_lazy, made))
    with eager():
        got = pickle.loads(data)
        assert all(map(is_lazy, got)) and [each.size for each in got] == [
            each.size for each in made
        ]
        assert [finish(each) for each in got] == got
        assert describe(got) == describe(pickle.loads(pickle.dumps(made)))
    assert not any(map(is_lazy, made))


def test_pixels_are_made_without_patches(files):
    with patched(), waiting(True):
        made = Image.open(files["rgb.jpg"]).convert("L")
    assert is_lazy(made)
    assert finish(made) is made and made.getpixel((0, 0)) is not None
    assert not PROCESS.seen  # nobody is blamed


def test_what_was_made_is_held_to_what_was_announced(files, lazy):
    made = Image.open(files["rgb.jpg"]).convert("RGB")
    made.__dict__["_form"] = (9, 9), "RGB"
    with pytest.raises(RuntimeError, match="announced"):
        made.getpixel((0, 0))
    assert isinstance(PROCESS.failed, RuntimeError)
    PROCESS.failed = None


def test_the_line_that_looks_is_blamed(files, lazy):
    made = Image.open(files["rgb.jpg"]).convert("RGB")
    made.getextrema()
    (look,) = PROCESS.seen
    assert look.place.startswith(__file__) and look.by == "Image.getextrema"
    assert look.where == "test_the_line_that_looks_is_blamed"
