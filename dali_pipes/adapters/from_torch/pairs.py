"""A second picture that is moved with the first one, such as the clean image of a noisy one:
`read_pair` says how a manifest and a transform make the same two, or refuses.

Both are given to one call of torchvision's v2, which draws once for both. The loader moves the
bytes of the second picture as those of the first one, and `OutputTarget` makes values of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch

from dali_pipes.adapters.from_torch.chains import MOVED_TOGETHER, Chain
from dali_pipes.adapters.from_torch.masks import STILL
from dali_pipes.adapters.from_torch.recorder import Trace
from dali_pipes.adapters.from_torch.recording.made_up import name_traits, traits_of
from dali_pipes.adapters.from_torch.structure import Shown
from dali_pipes.adapters.transforms.reading import NotConvertibleError, Reading, Step, refuse_unless
from dali_pipes.data.image_files.stored import open_stored
from dali_pipes.data.manifest import Manifest
from dali_pipes.loader.batch import Batch
from dali_pipes.plan.transforms import Transform

# steps of the second picture that leave every pixel where it is, and each value what it means
_OF_SECOND = (
    *("ToTensor", "PILToTensor", "ToImage", "ToDtype", "ConvertImageDtype", "ToPureTensor"),
    *("Identity", "Normalize", "Affine"),
)
# what the two pictures may have for themselves
_OF_EACH = ("mean", "std", "dtype", "augment")
_INSTEAD = "keep your DataLoader"


@dataclass(frozen=True, slots=True)
class OutputTarget:
    """A second picture that goes into a slot.

    Attributes:
        is_hwc: whether the channels come last.
        kind: "tensor" or "array".
        dtype: the dtype of the pictures.
        normalize: mean and std, of values in [0, 1]; None: they are bytes.
    """

    is_hwc: bool
    kind: str
    dtype: torch.dtype
    normalize: tuple[tuple[float, ...], tuple[float, ...]] | None

    def of(self, batch: Batch) -> torch.Tensor:
        """The second pictures of a batch: (N, 3, H, W) or (N, H, W, 3)."""
        pictures = batch["second"]
        if self.normalize:
            mean, std = (
                torch.tensor(each, dtype=torch.float32, device=pictures.device).view(-1, 1, 1)
                for each in self.normalize
            )
            # divided, as torchvision does it: the product with 1 / 255 has other last bits
            pictures = (pictures.to(torch.float32) / 255).sub_(mean).div_(std)
        pictures = pictures.permute(0, 2, 3, 1) if self.is_hwc else pictures
        return pictures.contiguous().to(self.dtype)


@dataclass(frozen=True, slots=True)
class PairReading:
    """Two pictures of a sample.

    Attributes:
        image: the way of the first one, which is the image of a sample.
        target: that of the second one.
        made: the transform that makes the second one; None: it is not known yet.
    """

    name: str
    image: Chain
    target: Chain
    made: Transform | None = None

    def joined(
        self, view: Transform, target: Reading, build: Callable[..., Transform]
    ) -> "PairReading":
        """The pair with the transform of the second picture.

        Args:
            view: that of the first picture.
            target: what was read of the steps of the second one.
            build: makes the transform of a reading.

        Raises:
            NotConvertibleError: the two are moved in different ways.
        """
        other = build(target)
        names = [each.name for each in fields(view)]
        differs = type(other) is not type(view) or [
            name
            for name in names
            if name not in _OF_EACH and getattr(view, name) != getattr(other, name)
        ]
        refuse_unless(
            not differs,
            self.name,
            "the two pictures of a sample are resized or moved in different ways",
            f"treat them alike, or {_INSTEAD}",
        )

        functions = [each.title for each in (*view.functions_before, *view.augmenter.functions)]
        refuse_unless(
            not functions,
            ", ".join(functions),
            "it may move pixels, and the second picture would not go along",
            _INSTEAD,
        )
        return replace(self, made=other)

    @property
    def steps(self) -> list[Step]:
        """The steps of the second picture, and what carries them out."""
        text = ", ".join(type(step).__name__ for step in self.target.steps)
        dtype = self.made.dtype if self.made else ""
        return [Step(f"second picture: {text}", f"moved with the first one, {dtype}")]

    def output(self, shown: Shown) -> OutputTarget:
        """What goes into the slot of the second picture."""
        made = self.made
        normalize = None if made is None or made.dtype == "uint8" else (made.mean, made.std)
        dtype = getattr(torch, shown.dtype.removeprefix("torch."))
        refuse_unless(
            dtype.is_floating_point or normalize is None,
            self.name,
            f"its second pictures are {dtype}, and ours torch.float32",
            "end the transform with ToDtype(torch.float32, scale=True)",
        )
        return OutputTarget(shown.matches[0].layout == "HWC", shown.kind, dtype, normalize)


def read_pair(seen: Trace) -> PairReading | None:
    """Reads two pictures that one call has moved; None: there are no such two.

    Raises:
        NotConvertibleError: they cannot be carried over.
    """
    if len(seen.used) != 2 or seen.used[0].file == seen.used[1].file:
        return None
    image, target = sorted(seen.used, key=lambda chain: chain.file)
    joint = {call for call in image.calls if call >= 0} & set(target.calls)
    if not joint:
        return None

    shown = [each for each, _ in seen.slots]
    is_simple = len(shown) == 2 and not any(each.is_stacked or each.is_mask for each in shown)
    refuse_unless(
        is_simple and all(each.kind != "pil" for each in shown),
        seen.name,
        "its samples have more pictures than two that move together",
        _INSTEAD,
    )
    turned = seen.exif == "apply" or image.is_upright or target.is_upright
    refuse_unless(
        not (turned or image.is_gray or target.is_gray),
        seen.name,
        "one of the two pictures of a sample is turned by its EXIF tag, or gray",
        f'open both with Image.open(path).convert("RGB"), or {_INSTEAD}',
    )

    _refuse_apart(seen.name, image, target, joint)
    return PairReading(seen.name, image, target)


def _refuse_apart(name: str, image: Chain, target: Chain, joint: set[int]) -> None:
    """Refuses a second picture that does not go where the first one goes, or changes its colors."""
    moves = []
    for step, call in zip(target.steps, target.calls, strict=True):
        kind = type(step).__name__
        if kind in _OF_SECOND:
            continue
        refuse_unless(
            kind in MOVED_TOGETHER and call in joint,
            name,
            f"{kind} changes the second picture of a sample"
            + (", as the first one" if call in joint else " alone"),
            "give both to crops, resizes and flips, and the first one alone to other steps; or "
            + _INSTEAD,
        )
        moves.append(call)

    # colors of the first picture alone are its own; what may move pixels is not
    ours = []
    for step, call in zip(image.steps, image.calls, strict=True):
        kind = type(step).__name__
        if kind in STILL:
            continue
        refuse_unless(
            kind in MOVED_TOGETHER and call in joint,
            name,
            f"{kind} may move the first picture of a sample alone",
            f"give crops, resizes and flips both pictures in one call; or {_INSTEAD}",
        )
        ours.append(call)
    refuse_unless(ours == moves, name, "its two pictures are moved in different orders", _INSTEAD)


def refuse_other_pairs(seen: Trace, manifest: Manifest) -> None:
    """Refuses second pictures of another size than the first one, and in modes that the data set
    does not convert to RGB.
    """
    sizes = manifest.sizes.tolist()
    for sample, (height, width) in enumerate(sizes):
        file = manifest.second_extent(sample).file
        try:
            with open(file, "rb") as opened, open_stored(opened) as image:
                size, others = image.size, traits_of(image) - set(seen.modes or traits_of(image))
        except Exception as error:  # Pillow's plugins raise almost anything on broken files
            why = f"our decoders do not take {file} ({type(error).__name__}: {error})"
            raise NotConvertibleError(seen.name, why, "save it as PNG or JPEG") from None
        refuse_unless(
            size == (width, height),
            seen.name,
            f"{file} has {size[0]} × {size[1]} pixels, and its first picture {width} × {height}",
            f"make them equal; or {_INSTEAD}",
        )
        refuse_unless(
            not others,
            seen.name,
            f"{file} has {name_traits(others)}, and it does not make of it what dali_pipes does, "
            'which is Image.open(path).convert("RGB")',
            "open images like that",
        )
