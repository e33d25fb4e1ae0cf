"""Pictures of other kinds, what a file says of them, and what Pillow does with them."""

import io
import operator
import warnings
from pathlib import Path

import cv2
import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import (
    Image,
    ImageChops,
    ImageCms,
    ImageDraw,
    ImageEnhance,
    ImageFilter,
    ImageOps,
    ImageSequence,
    ImageStat,
    PngImagePlugin,
)
from torchvision.io import read_image

from programs.pictures import aged, fresh
from programs.traps import SIZE, array, small, tensor, trap


def saved(picture, suffix, **options):
    """The name of a file that was not written just now."""
    file = fresh(suffix)
    picture.save(file, **options)
    return str(aged(file))


def deep(path):
    """Of 16 bits."""
    pixels = np.asarray(small(path).convert("L"), np.uint16) * 257 + 90
    return Image.fromarray(pixels)


def turned(path):
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif, small(path).resize((SIZE, 32))


# Formats and modes


@trap
def several_frames(path, other):
    p, q = small(path), small(other)
    gif, png = (
        Image.open(saved(p, suffix, save_all=True, append_images=[q]))
        for suffix in (".gif", ".png")
    )
    counts = gif.n_frames, png.n_frames, gif.is_animated
    frames = [F.to_tensor(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)]
    gif.seek(1), png.seek(1)
    return F.to_tensor(gif.convert("RGB")), F.to_tensor(png.convert("RGB")), counts, frames


@trap
def pictures_of_all_modes_and_formats(path, other):
    p = small(path)
    alpha = p.copy()
    alpha.putalpha(Image.new("L", p.size, 99))
    modes = [p.quantize(9), alpha, alpha.convert("LA"), p.convert("1"), deep(path), p.convert("L")]
    files = [saved(each, ".png") for each in modes] + [saved(p.convert("CMYK"), ".jpg")]
    files += [saved(p, suffix) for suffix in (".bmp", ".tiff", ".webp", ".ppm")]
    opened = [Image.open(file) for file in files]
    converted = [each.resize((20, 20)).convert("RGB") for each in opened]
    gray = [Image.open(file).convert("L").crop((3, 3, 30, 30)) for file in files]
    said = [(each.mode, each.has_transparency_data) for each in opened]
    return [[np.array(each) for each in each_list] for each_list in (converted, gray, opened)], said


@trap
def palettes_with_transparency_and_a_warning_that_the_program_hears(path, other):
    palette = small(path).quantize(9)
    p = Image.open(saved(palette, ".png", transparency=3))
    q = Image.open(saved(palette, ".png", transparency=bytes([0, 9, 99])))
    said = bytes(p.palette.palette).hex(), str(p.info.get("transparency"))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        q = q.convert("RGB")
    made = p.convert("RGBA").getpixel((3, 3)), F.to_tensor(p.convert("RGB")), F.to_tensor(q)
    return *said, *made, len(heard)


@trap
def sixteen_bits(path, other):
    file = str(fresh(".png"))
    cv2.imwrite(file, array(path).astype(np.uint16) * 257 + 90)
    aged(file)
    depth = Image.open(saved(deep(path), ".png"))
    metres = np.array(depth, dtype=np.float32) / 1000.0
    half = np.asarray(depth.resize((20, 20), Image.Resampling.NEAREST)).astype(np.int32)
    read = cv2.imread(file), cv2.imread(file, -1), read_image(file)
    return *read, np.array(Image.open(file).convert("RGB")), metres, half, F.to_tensor(depth)


# What a file says


@trap
def turned_by_exif(path, other):
    exif, p = turned(path)
    file, png = saved(p, ".jpg", exif=exif), saved(p, ".png", exif=exif)
    p, q = Image.open(file), Image.open(png)
    upright = ImageOps.exif_transpose(p.convert("RGB"))
    ImageOps.exif_transpose(q, in_place=True)
    tags = [each.getexif().get(0x0112, 0) for each in (p, upright, q)]
    read = [cv2.imread(file), cv2.imread(file, -1), cv2.imread(file, 0), read_image(file)]
    return tags, p.size, upright.size, q.size, F.to_tensor(upright), F.to_tensor(q), *read


@trap
def what_only_pictures_of_a_format_have(path, other):
    p = Image.open(saved(small(path), ".jpg", quality=70, progressive=True))
    q, r = p.convert("RGB"), p.crop((0, 0, 9, 9))
    said = [p.layers, len(p.quantization), p.get_format_mimetype(), p.info.get("progressive")]
    said += [hasattr(each, "quantization") for each in (q, r)]
    said += [p.getxmp(), getattr(p, "n_frames", 1), p.custom_mimetype, p.tell()]
    return str(said), len(p.tile), F.to_tensor(p), len(p.tile), p.fp is None


@trap
def text_that_comes_after_the_pixels(path, other):
    extra = PngImagePlugin.PngInfo()
    extra.add_text("what", "ever")
    extra.add(b"tEXt", b"after\x00it", after_idat=True)
    exif, p = turned(path)
    p = Image.open(saved(p, ".png", pnginfo=extra, exif=exif))
    before = sorted(p.info)
    q = ImageOps.exif_transpose(p)
    return dict(p.text), before, q.getexif().get(0x0112, 0), F.to_tensor(q.convert("RGB"))


@trap
def info_after_steps(path, other):
    p = Image.open(saved(small(path), ".jpg", dpi=(72, 72), comment=b"x"))
    p.info["mine"] = 1
    q, r, e = p.convert("L"), p.resize((9, 9)), ImageEnhance.Color(p).enhance(0.5)
    r.info["mine"] = 2
    named = p.copy()
    named.label = "mine"
    said = [sorted(map(str, each.info)) for each in (p, q, r, e, p.rotate(9), ImageOps.mirror(p))]
    return said, r.info["mine"], p.info["mine"], hasattr(named.crop((0, 0, 9, 9)), "label")


@trap
def colour_profiles(path, other):
    srgb, lab = ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB")
    bytes_of = ImageCms.ImageCmsProfile(srgb).tobytes()
    p = Image.open(saved(small(path), ".jpg", icc_profile=bytes_of))
    own = ImageCms.ImageCmsProfile(io.BytesIO(p.info["icc_profile"]))
    q = ImageCms.profileToProfile(p, own, lab, outputMode="LAB")
    r = p.copy()
    ImageCms.applyTransform(r, ImageCms.buildTransform(own, own, "RGB", "RGB"), inPlace=True)
    return np.array(q), F.to_tensor(r), len(p.crop((0, 0, 9, 9)).info.get("icc_profile", b""))


# What Pillow does


@trap
def rotations_crops_and_reductions(path, other):
    p = small(path)
    made = [p.rotate(angle) for angle in (0, 90, 180, 270, 360, -90, 45.5)]
    made += [p.rotate(10, translate=(3, 4)), p.rotate(10, center=(1, 1), fillcolor=(9, 8, 7))]
    made += [p.rotate(10, Image.Resampling.BICUBIC, expand=1, fillcolor="red")]
    made += [p.rotate(33, expand=True), p.crop((-5, -5, 60, 20)), p.reduce(3)]
    made += [p.crop((1.4, 2.6, 9, 9))]
    made += [p.crop((60, 60, 70, 70)), p.reduce((2, 3), (1, 1, 40, 40)), p.getchannel("R")]
    return [each.size for each in made], [F.to_tensor(each) for each in made]


@trap(collate_fn=list)
def draft_gap_box_and_all_filters(path, other):
    p, big = Image.open(path), Image.open(path).convert("RGB")
    box = p.draft("RGB", (40, 40))
    made = [big.resize((SIZE, SIZE), each) for each in range(6)]
    made += [big.resize((20, 20), 1, (3, 3, 90.5, 80), 2.0)]
    made += [big.resize((30, 20), box=(0, 0, 50, 60)), big.resize(big.size), big.resize((1, 1))]
    found = str(box), p.size, F.to_tensor(p.convert("RGB").resize((SIZE, SIZE)))
    return *found, list(map(F.to_tensor, made))


@trap
def operations_of_pillow(path, other):
    p, q = small(path), small(other)
    made = [ImageOps.fit(p, (30, 20)), ImageOps.pad(p, (30, 50)), ImageOps.invert(p)]
    made += [ImageOps.posterize(p, 3), ImageOps.solarize(p, 99), ImageOps.autocontrast(p, 5)]
    made += [ImageOps.equalize(p), ImageChops.add(p, q), p.filter(ImageFilter.GaussianBlur(2))]
    made += [ImageOps.mirror(q), p.filter(ImageFilter.MedianFilter), p.point(lambda v: v // 2)]
    made += [Image.blend(p, q, 0.3), ImageOps.expand(p, 4, 9), ImageOps.scale(p, 0.5)]
    made += [ImageOps.grayscale(p), ImageOps.colorize(p.convert("L"), "blue", "red")]
    made += [ImageChops.offset(p, 3), ImageChops.lighter(p, q), ImageOps.cover(p, (20, 30))]
    made += [Image.composite(p, q, p.convert("L")), Image.merge("RGB", p.split()[::-1])]
    made += [p.transform((20, 20), Image.Transform.EXTENT, (3, 3, 30, 30)), q.quantize(9)]
    quad = (0, 0, 3, 40, 40, 44, 45, 2)
    made += [p.transform((20, 20), Image.Transform.QUAD, quad, Image.Resampling.BILINEAR)]
    made += [p.filter(ImageFilter.Kernel((3, 3), range(9), 36)), ImageOps.crop(p, 5)]
    return [F.to_tensor(each.convert("RGB")) for each in made]


@trap
def what_is_found_in_a_picture(path, other):
    p, gray = small(path), small(other).convert("L")
    box = ImageChops.difference(p, small(other)).getbbox()
    dark = gray.point(lambda value: 255 * (value > 120)).getbbox()
    found = ImageStat.Stat(p).mean, p.histogram()[:9], p.getextrema(), gray.entropy()
    found += (len(p.getcolors(1 << 20)), gray.getprojection()[0][:9], gray.histogram()[100])
    made = found, F.to_tensor(p.crop(box).resize((9, 9)))
    return *made, F.to_tensor(gray.crop(dark).resize((9, 9)))


@trap
def pictures_from_buffers(path, other):
    a, p = array(path), small(other)
    made = [Image.frombytes("RGB", (SIZE, SIZE), p.tobytes())]
    made += [Image.frombuffer("RGB", (SIZE, SIZE), a, "raw", "RGB", 0, 1)]
    gray = a[..., 0].copy()
    made += [Image.frombuffer("L", (SIZE, SIZE), gray, "raw", "L", 0, 1)]
    made += [Image.fromarray(a[:, ::2]), Image.fromarray(np.array(p.convert("L")) > 99)]
    gray[:5] = 0
    return [np.array(each) for each in made]


@trap
def drawn_and_saved_and_opened_again(path, other):
    out, p = io.BytesIO(), Image.open(path)
    p.save(out, "JPEG", quality=70)
    q = Image.open(out).convert("RGB").resize((SIZE, SIZE))
    draw = ImageDraw.Draw(q)
    draw.text((3, 3), "x")
    draw.polygon([(9, 9), (30, 9), (20, 30)], fill=(0, 99, 0))
    ImageDraw.floodfill(q, (40, 40), (1, 2, 3), thresh=50)
    return F.to_tensor(q), len(out.getvalue())


@trap
def mistakes_in_calls_raise_where_they_are_made(path, other):
    p, x, y, a = small(path), tensor(path), F.pil_to_tensor(small(other)), array(path)
    calls = [lambda: p.resize((0, 5)), lambda: p.resize((5, 5), 99), lambda: p.crop((9, 9, 1, 1))]
    calls += [lambda: p.transpose(99), lambda: p.convert("XYZ"), lambda: p.filter(None)]
    calls += [lambda: p.point([1, 2, 3]), lambda: p.rotate("a")]
    calls += [lambda: p.transform((0, 0), Image.Transform.AFFINE, (1, 0, 0, 0, 1, 0))]
    calls += [lambda: F.adjust_hue(p, 0.7), lambda: F.adjust_hue(x, -0.7)]
    calls += [lambda: F.adjust_brightness(x, -1), lambda: F.adjust_gamma(p, -1)]
    calls += [lambda: F.posterize(x, 99), lambda: F.gaussian_blur(p, 4)]
    calls += [lambda: F.normalize(x, [0.5] * 2, [0.5] * 2)]
    calls += [lambda: F.normalize(x, [0.5] * 3, [0.0] * 3)]
    calls += [lambda: F.pad(p, 90, padding_mode="reflect")]
    calls += [lambda: F.pad(x, 90, padding_mode="reflect"), lambda: F.erase(p, 1, 1, 2, 2, 0)]
    calls += [lambda: F.crop(x, 40, 40, 20, 20), lambda: x.permute(0, 1), lambda: x.view(7, 7)]
    calls += [lambda: x.select(0, 5), lambda: torch.stack([x, x[:, 1:]]), lambda: a.transpose(0, 1)]
    calls += [lambda: a[:, ::0], lambda: a + 300, lambda: cv2.resize(a, (0, 0))]
    calls += [lambda: cv2.cvtColor(a[..., 0], cv2.COLOR_BGR2GRAY)]
    calls += [lambda: cv2.warpAffine(a, np.eye(3), (9, 9)), lambda: cv2.flip(a, "x")]
    calls += [lambda: y.div_(2), lambda: y.mul_(0.5), lambda: operator.itruediv(y, 255)]
    heard = []
    for call in calls:
        try:
            heard.append(getattr(call(), "size", 0))
        except Exception as error:
            heard.append(type(error).__name__)
    return list(map(str, map(_plain, heard))), x, y


def _plain(size):
    return "size" if callable(size) else size


@trap
def name_and_place_of_the_file(path, other):
    p = Image.open(path)
    q = p.convert("RGB")
    with open(path, "rb") as file:
        r = Image.open(file)
        names = p.filename, hasattr(q, "filename"), Path(r.filename).name
    return names, Image.open(Path(path)).filename == path, F.to_tensor(q.resize((9, 9)))
