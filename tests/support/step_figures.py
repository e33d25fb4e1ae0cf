"""How far the cases of `library_steps` are from what the old loader makes: pixels of the same draw,
and distributions.

`differences` carries out the rows of a plan with the functions of the libraries themselves, on PIL
images or arrays, and compares a loader's pixels with that. `distance_of_draws` compares many images
of a loader with as many of the live transform, which know nothing of each other.
"""

import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from distributions import distance
from library_steps import CPU, LOADERS, Case
from PIL import Image, ImageOps
from reference import erase, operate_as_timm, resize
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

import dali_pipes as dp
from dali_pipes.backends.pixels.tensors import to_steps
from dali_pipes.plan.draws import BEFORE_DRAW, Draws
from dali_pipes.plan.draws import STEP_DRAWS as DRAWS_OF_STEP
from dali_pipes.plan.steps.operations import OPS, Slot
from dali_pipes.plan.transforms import Transform, views_of

SEED = 5
EDGE = (0.25, 0.5, 0.75)  # where single pixels are looked at, as shares of height and width


def build(manifest: dp.Manifest, loader: str, transform: Transform, **options: Any) -> Any:
    """A loader of all images in order, in one batch."""
    options = {"batch_size": len(manifest), "last_batch": "partial"} | options
    return dp.build_loader(
        manifest,
        LOADERS[loader],
        transform=transform,
        shuffle=False,
        seed=SEED,
        device=CPU,
        **options,
    )


def differences(case: Case, transform: Transform, loader: str, folder: Path) -> dict[str, float]:
    """How far a loader's pixels are from the library's with the same draws, in steps of 255: the
    largest and the mean difference.
    """
    manifest = dp.Manifest.scan(folder, progress=False)
    files = [manifest.path(at) for at in range(len(manifest))]
    with build(manifest, loader, transform) as built:
        planned, batch = built.plan.batch(0, 0), next(iter(built))
    ours = to_steps(batch.images, transform)
    theirs = torch.stack(
        [
            to_steps(_Replay(case, transform, planned, at).of(_open(file)), transform)
            for at, file in enumerate(files)
        ]
    )
    return _compare(ours, theirs)


def _compare(ours: torch.Tensor, theirs: torch.Tensor) -> dict[str, float]:
    difference = (ours - theirs).abs()
    # what floats are rounded to is no difference
    largest = float(difference.max())
    return {"max": largest if largest > 1e-3 else 0.0, "mean": float(difference.mean())}


def _open(path: Any) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


class _Replay:
    """One row of a plan, carried out with the libraries' own functions."""

    def __init__(self, case: Case, transform: Transform, planned: Any, at: int):
        self._case, self._transform, self._at = case, transform, at
        self._view, self._ids = planned.views[0], planned.ids

    def of(self, image: Image.Image) -> torch.Tensor:
        """What the plan makes of a stored image, uint8 or normalized as the transform says."""
        image = self._place(self._before(image))
        if self._transform.channels == 1:
            image = F.to_grayscale(image, num_output_channels=1)
        drawn = self._view.augmentation.take(self._at)
        for slot, code, magnitude in zip(
            self._transform.augmenter.slots, drawn.ops, drawn.magnitudes.tolist(), strict=True
        ):
            image = _operate(image, OPS[code], magnitude, slot)

        tensor = F.pil_to_tensor(image).contiguous()
        if self._transform.dtype == "uint8":
            return tensor

        mean, std = (list(getattr(self._transform, name)) for name in ("mean", "std"))
        tensor = F.normalize(F.to_dtype(tensor, torch.float32, scale=True), mean, std)
        return erase(tensor, drawn.erased)

    def _before(self, image: Image.Image) -> Image.Image:
        draws, first = Draws(SEED, 0, self._ids), BEFORE_DRAW
        for step, drawn in zip(
            getattr(self._transform, "before", []), self._view.before, strict=True
        ):
            numbers = draws.uniform([first, first + 1, first + 2])[:, self._at].T
            image = _move(step, image, numbers, tuple(drawn.take(self._at).size.tolist()))
            first += DRAWS_OF_STEP
        return image

    def _place(self, image: Image.Image) -> Image.Image:
        """The region, resized, and the crop of that, flipped."""
        transform, geometry = self._transform, self._view.geometry.take(self._at)
        height, width = geometry.resize.tolist()
        image = F.crop(image, *geometry.region.tolist())
        kind = transform.interpolation
        if kind == "random":
            kind = ("bilinear", "bicubic")[int(self._view.interpolations[self._at])]
        if image.size != (width, height):
            image = resize(image, (height, width), kind, transform.antialias)
        top, left = geometry.crop.tolist()
        # torchvision's crop of a PIL image is black outside of it
        image = F.crop(image, top, left, *self._view.shape)
        image = F.horizontal_flip(image) if geometry.flip else image
        return F.vertical_flip(image) if geometry.vertical_flip else image


def _move(step: Any, image: Image.Image, numbers: np.ndarray, size: tuple[int, int]) -> Image.Image:
    """torchvision's function for a step of `before`, with the plan's draws, (3, 4) in [0, 1)."""
    (happens, *first), second, third = numbers.tolist()
    if happens >= step.p:
        return image
    mode = InterpolationMode(step.interpolation)

    def between(share: float, bounds: Any) -> float:
        return bounds[0] + (bounds[1] - bounds[0]) * share

    match type(step).__name__:
        case "WholeRotation":
            angle = between(first[0], step.degrees)
            return F.rotate(image, angle, mode, step.expand, step.center, list(step.fill))
        case "WholeAffine":
            right, down, along_x, along_y = second
            most = [
                share * side
                for share, side in zip(step.translate or (0, 0), image.size, strict=True)
            ]
            moved = [
                round((2 * each - 1) * far) for each, far in zip((right, down), most, strict=True)
            ]
            shear = step.shear or (0.0, 0.0)
            shears = [between(along_x, shear[:2]), between(along_y, shear[2:] or (0.0, 0.0))]
            angle, scale = between(first[0], step.degrees), between(first[1], step.scale or (1, 1))
            return F.affine(image, angle, moved, scale, shears, mode, list(step.fill), step.center)
        case "WholePerspective":
            width, height = image.size
            start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
            shares = np.array([second, third]).reshape(4, 2)
            most = [int(step.distortion_scale * (side // 2)) for side in (width, height)]
            end = [
                [
                    int(share * (far + 1)) + (0 if side == 0 else side - far)
                    for share, far, side in zip(pair, most, corner, strict=True)
                ]
                for pair, corner in zip(shares, start, strict=True)
            ]
            return F.perspective(image, start, end, mode, list(step.fill))
        case "WholePad":
            (sides,) = step.around(np.array([[image.height, image.width]])).tolist()
            return F.pad(image, sides, list(step.fill), step.padding_mode)
        case "WholeResize":
            return resize(image, size, step.interpolation, step.antialias)
        case "WholeFlip":
            return F.vertical_flip(image) if step.vertical else F.horizontal_flip(image)
    raise ValueError(step)


def _operate(image: Image.Image, op: str, magnitude: float, slot: Slot) -> Image.Image:
    """torchvision's function, or timm's, for an operation of `augment`."""
    if slot.fill is not None:
        return operate_as_timm(image, op, magnitude, slot)
    if op == "Hue":
        return F.adjust_hue(image, magnitude)
    if op == "GaussianBlur":
        return F.gaussian_blur(image, [slot.kernel_size] * 2, [magnitude] * 2)
    mode = InterpolationMode(slot.interpolation)
    if op == "Solarize":
        return F.solarize(image, 255 * magnitude)
    if op == "Rotate":
        return F.rotate(image, magnitude, mode)
    if op == "Color" and magnitude == -1:
        # RandomGrayscale and Grayscale
        return F.to_grayscale(image, num_output_channels=3)
    if op == "EqualizeInSteps":
        return F.equalize(image)
    return v2.AutoAugment()._apply_image_or_video_transform(
        image, op, magnitude, interpolation=mode, fill={}
    )


def is_random(case: Case, transform: Transform, folder: Path) -> bool:
    """Whether the live transform makes several images of one."""
    picture = _open(dp.Manifest.scan(folder, progress=False).path(0))
    measures = _measure_live(case, transform, picture, 60)
    return bool((measures != measures[0]).any())


def distance_of_draws(case: Case, transform: Transform, folder: Path, count: int) -> float:
    """The largest distance of Kolmogorov and Smirnov between `count` images of `loader=torch` and
    as many of the live transform, of one stored picture, over all of `_measure`.
    """
    manifest = dp.Manifest.scan(folder, progress=False)
    picture = _open(manifest.path(0))
    live = _measure_live(case, transform, picture, count)
    repeated = manifest.subset(np.zeros(count, np.int64))
    ours = []
    with build(repeated, "torch", transform, batch_size=min(count, 200)) as built:
        for batch in built:
            # one view of several is enough: they are no draws
            ours.append(_measure(to_steps(batch.images, views_of(transform)[0])))
    return max(map(distance, torch.cat(ours).numpy().T, live.numpy().T))


_POSTERIZE_OF_PILLOW = ImageOps.posterize


def _posterize(image: Image.Image, bits: int) -> Image.Image:
    """A black image with no bits, as timm meant it; under Pillow 13 timm fails with none."""
    return _POSTERIZE_OF_PILLOW(image, bits) if bits else Image.new("RGB", image.size)


@patch.object(ImageOps, "posterize", _posterize)
def _measure_live(case: Case, transform: Transform, picture: Image.Image, count: int) -> Any:
    live, found = case.transform(), []
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    if case.library == "albumentations":
        live.set_random_seed(1)
        array = np.array(picture)
    made = []
    for at in range(count):
        image = live(image=array)["image"] if case.library == "albumentations" else live(picture)
        made.append(image)
        if len(made) == 200 or at == count - 1:
            found.append(_measure(to_steps(torch.stack(made), views_of(transform)[0])))
            made = []
    return torch.cat(found)


def _measure(images: torch.Tensor) -> torch.Tensor:
    """(N, 22) what (N, 3, H, W) images of 0 to 255 look like, each as a share: means, spreads and
    ranges of colours, sides, detail, and nine pixels; fewer of one channel.
    """
    shares = images.float() / 255
    height, width = shares.shape[2:]
    gray = shares.mean(dim=1)
    sides = [
        gray[:, :, : width // 2].mean((1, 2)) - gray[:, :, width // 2 :].mean((1, 2)),
        gray[:, : height // 2].mean((1, 2)) - gray[:, height // 2 :].mean((1, 2)),
    ]
    detail = [(gray.diff(dim=axis)).abs().mean((1, 2)) for axis in (1, 2)]
    pixels = [
        shares[:, number % shares.shape[1], int(height * y), int(width * x)]
        for number, (y, x) in enumerate((y, x) for y in EDGE for x in EDGE)
    ]
    return torch.stack(
        [
            *shares.mean((2, 3)).T,
            *shares.std((2, 3)).T,
            *(shares.amax((2, 3)) - shares.amin((2, 3))).T,
            *sides,
            *detail,
            *pixels,
        ],
        dim=1,
    )
