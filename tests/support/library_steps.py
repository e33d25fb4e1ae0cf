"""The steps of torchvision, timm and albumentations that programs for classification have, one list
for all: what `transform_from_torch` makes of each, and which loaders carry it out (docs/steps.md).
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from later import later
from PIL import Image

import dali_pipes as dp
from dali_pipes.adapters.transforms.reading import NotConvertibleError
from dali_pipes.adapters.transforms.steps import read
from dali_pipes.backends.backend import Job
from dali_pipes.backends.registry import load_backend
from dali_pipes.plan.transforms import Transform

A = later("albumentations")

# heights and widths of the pictures; some steps of albumentations turn images by 90°
SMALL, SQUARE, LARGE = (40, 48), (48, 48), (60, 72)
CPU = torch.device("cpu")
# what DALI's graph refuses it refuses on a GPU too: `loader=dali`
LOADERS: dict[str, Any] = {
    "torch": dp.TorchConfig(num_workers=0),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=1),
    "dali": dp.DaliConfig(device="cpu", num_threads=1, resize="dali"),
}

# Python of each step, by library and place: "size" gives images their size, "before" stands before
# the resize and the crop, "after" behind them, "floats" behind ToTensor.
STEPS: dict[str, dict[str, tuple[str, ...]]] = {
    "torchvision": {
        "size": (
            "Resize((40, 48))",
            "Resize((40, 48), InterpolationMode.BICUBIC)",
            "Resize((40, 48), InterpolationMode.NEAREST)",
            "Resize(48), CenterCrop(40)",
            "Resize(48), CenterCrop(64)",
            "CenterCrop(40)",
            "RandomResizedCrop(40)",
            "RandomResizedCrop(40, interpolation=InterpolationMode.BICUBIC)",
            "Resize(50), RandomResizedCrop(40)",
            "Resize(50), RandomCrop(40)",
            "RandomCrop(40, padding=4)",
            "RandomCrop(40, padding=4, fill=255)",
            "RandomCrop(40, padding=4, padding_mode='edge')",
            "RandomCrop(40, padding=4, padding_mode='reflect')",
            "RandomCrop(40, padding=4, padding_mode='symmetric')",
            "RandomCrop(80, pad_if_needed=True)",
            "RandomHorizontalFlip(), Resize(48), CenterCrop(40)",
            "Resize(48)",
        ),
        "of v2, size": ("Resize((40, 48), antialias=False)",),
        "before": (
            "RandomHorizontalFlip()",
            "RandomVerticalFlip()",
            "RandomRotation(30)",
            "RandomRotation(30, InterpolationMode.BILINEAR)",
            "RandomRotation(30, expand=True, fill=9)",
            "RandomAffine(15, (0.1, 0.1), (0.8, 1.2), 10)",
            "RandomAffine(15, interpolation=InterpolationMode.BICUBIC)",
            "RandomPerspective()",
            "Pad(4, fill=(200, 3, 90))",
            "Pad(4, padding_mode='edge')",
            "Pad(4, padding_mode='reflect')",
            "Pad(4, padding_mode='symmetric')",
            "RandomApply([RandomRotation(30)], 0.3)",
        ),
        "after": (
            "RandomHorizontalFlip()",
            "RandomVerticalFlip()",
            "TrivialAugmentWide()",
            "TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR)",
            "RandAugment()",
            "AutoAugment()",
            "ColorJitter(0.4)",
            "ColorJitter(contrast=0.4)",
            "ColorJitter(saturation=0.4)",
            "ColorJitter(hue=0.1)",
            "ColorJitter(0.4, 0.4, 0.4, 0.1)",
            "RandomApply([ColorJitter(0.4, 0.4, 0.4)], 0.8)",
            "RandomGrayscale(0.2)",
            "Grayscale(3)",
            "Grayscale()",
            "RandomSolarize(128)",
            "RandomPosterize(4)",
            "RandomInvert()",
            "RandomAutocontrast()",
            "RandomEqualize()",
            "RandomAdjustSharpness(1.5)",
            "GaussianBlur(9, (0.1, 2.0))",
            "RandomRotation(15)",
            "RandomRotation(15, InterpolationMode.BILINEAR)",
            "RandomAffine(10, (0.1, 0.1))",
            "RandomPerspective()",
            "Pad(4)",
        ),
        "floats": (
            "Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))",
            "RandomErasing()",
            "RandomErasing(value='random')",
        ),
    },
    "timm": {
        "size": (
            "RandomResizedCropAndInterpolation(40, interpolation='bilinear')",
            "RandomResizedCropAndInterpolation(40, interpolation='bicubic')",
            "RandomResizedCropAndInterpolation(40, interpolation='random')",
        ),
        "after": (
            "rand_augment_transform('rand-m9-mstd0.5-inc1', {})",
            "rand_augment_transform('rand-m9-n2-mstd0.5', {})",
            "rand_augment_transform('rand-m6-n3-tweights', {})",
        ),
        "floats": (
            "RandomErasing(0.5, device='cpu')",
            "RandomErasing(0.5, mode='rand', device='cpu')",
            "RandomErasing(0.5, mode='pixel', max_count=3, device='cpu')",
        ),
    },
    "albumentations": {
        "size": (
            "Resize(40, 48)",
            "Resize(40, 48, interpolation=cv2.INTER_CUBIC)",
            "RandomResizedCrop((40, 48), scale=(0.5, 1))",
            "Resize(48, 60), RandomCrop(40, 48)",
            "Resize(48, 60), CenterCrop(40, 48)",
            "SmallestMaxSize(50), RandomCrop(40, 48)",
            "RandomCrop(40, 48)",
            "LongestMaxSize(48), PadIfNeeded(48, 48)",
            "LongestMaxSize(48), PadIfNeeded(48, 56, border_mode=4)",
            "PadIfNeeded(64, 88, fill=(9, 200, 30)), RandomCrop(64, 80)",
        ),
        "before": ("HorizontalFlip()",),
        "after": (
            "HorizontalFlip()",
            "VerticalFlip()",
            "Normalize()",
            "ToFloat(255)",
            "PadIfNeeded(64, 64)",
        ),
    },
}


@dataclass(frozen=True)
class Case:
    """One step, or a few that belong together.

    Attributes:
        library: "torchvision", "timm" or "albumentations".
        place: as in `STEPS`.
        text: Python of the steps.
        forced_size: height and width of other pictures than the tests'.
    """

    library: str
    place: str
    text: str
    forced_size: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures; a resize behind or before the steps leaves them."""
        if self.forced_size:
            return self.forced_size
        if self.place not in ("after", "floats"):
            return LARGE
        return SQUARE if self.library == "albumentations" else SMALL

    @property
    def is_of_v2(self) -> bool:
        """Whether the first version of torchvision's transforms does not have it."""
        return self.text in _OF_V2

    def transform(self, version: str | None = None) -> Any:
        """The whole transform around the steps.

        Args:
            version: torchvision's module; the second version by default.
        """
        return self._frame(version)[0]

    def read(self, version: str | None = None) -> tuple[list[str], Transform]:
        """What becomes of each of the steps, in words, and the transform that does the same.

        Raises:
            NotConvertibleError: a step, or what it makes, has no counterpart.
        """
        live, own = self._frame(version)
        reading = read(live)
        return [step.by for step in reading.steps[own]], reading.built()

    def _frame(self, version: str | None) -> tuple[Any, slice]:
        """The transform, and which of its steps are not only there to make a batch of images."""
        if self.library == "albumentations":
            resize, end, compose = [A.Resize(*self.size)], [A.ToTensorV2()], A.Compose
            names = vars(import_module("albumentations")) | {"cv2": import_module("cv2")}
        else:
            steps = import_module(_V1 if self.library == "timm" else version or _V2)
            resize, end, compose = [steps.Resize(self.size)], [steps.PILToTensor()], steps.Compose
            modules = _OF_TIMM if self.library == "timm" else (steps.__name__,)
            names = {}
            for each in modules:
                names |= vars(import_module(each))

        own = list(eval(f"({self.text},)", dict(names)))
        if self.place == "before":
            return compose([*own, *resize, *end]), slice(0, len(own))
        if self.place == "after":
            return compose([*resize, *own, *end]), slice(1, 1 + len(own))
        if self.place == "floats":
            first = [*resize, *end, steps.ConvertImageDtype(torch.float32)]
            return compose([*first, *own]), slice(3, 3 + len(own))
        return compose([*own, *end]), slice(0, len(own))


_V1, _V2 = "torchvision.transforms", "torchvision.transforms.v2"
_OF_TIMM = ("timm.data.auto_augment", "timm.data.transforms", "timm.data.random_erasing")
_OF_V2 = {
    text
    for places in STEPS.values()
    for place, texts in places.items()
    if place.startswith("of v2")
    for text in texts
}
CASES = [
    Case(library, place.removeprefix("of v2, "), text)
    for library, places in STEPS.items()
    for place, texts in places.items()
    for text in texts
]


@dataclass(frozen=True)
class Outcome:
    """What `transform_from_torch` makes of a case.

    Attributes:
        kind: "plan" or "refused".
        words: what becomes of the steps, or why nothing does.
        loaders: for each of `LOADERS` what refuses the transform there, "" if nothing does.
        transform: None if it is refused.
    """

    kind: str
    words: str
    loaders: dict[str, str]
    transform: Transform | None = None


def outcome_of(case: Case, folder: Path, version: str | None = None) -> Outcome:
    """What becomes of a case, for pictures in this folder; `version` as for `Case.transform`."""
    try:
        by, transform = case.read(version)
    except NotConvertibleError as error:
        return Outcome("refused", error.problem, {})
    words = "; ".join(dict.fromkeys(map(_shorten, by)))
    return Outcome("plan", words, refusals(transform, folder), transform)


def _shorten(by: str) -> str:
    """What carries a step out, without options."""
    head, _, rest = by.partition(": ")
    if head not in ("augment", "before"):
        return by
    name = rest.partition("(")[0]
    note = rest.rpartition(")")[2].partition("; ")[2]
    return f"{head}: {name}" + (f"; {note}" if note else "")


def refusals(transform: Transform, folder: Path) -> dict[str, str]:
    """Why each loader that is installed does not carry a transform out; "" if it does."""
    manifest = dp.Manifest.scan(folder, progress=False)
    found = {}
    for name, config in LOADERS.items():
        try:
            backend = load_backend(config)
            backend(Job(transform, manifest, 4, CPU), config.on_cores(1)).close()
            found[name] = ""
        except dp.ConfigError as error:
            found[name] = str(error)
    return found


def draw_pictures(folder: Path, size: tuple[int, int], count: int) -> None:
    """Writes pictures with areas, edges and colours, in one class."""
    rng = np.random.default_rng(0)
    (folder / "a").mkdir(parents=True)
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (5, 6, 3), np.uint8))
        kind = Image.Resampling.BICUBIC if number % 2 else Image.Resampling.NEAREST
        coarse.resize(size[::-1], kind).save(folder / "a" / f"{number:02}.png")
