"""Where the pictures of our batches go in the old loader's: `make_output` makes the `Output` of a
conversion.
"""

from typing import Any

import torch

from dali_pipes.adapters.from_torch.masks import MaskReading, OutputMask
from dali_pipes.adapters.from_torch.output import Output, OutputPicture
from dali_pipes.adapters.from_torch.pairs import OutputTarget, PairReading
from dali_pipes.adapters.from_torch.recorder import Trace
from dali_pipes.adapters.from_torch.structure import slots_in
from dali_pipes.adapters.from_torch.views import view_places
from dali_pipes.adapters.transforms.reading import NotConvertibleError, refuse_unless
from dali_pipes.loader.batch import Batch
from dali_pipes.plan.transforms import Transform


def make_output(
    seen: Trace,
    transform: Transform,
    views: list[Transform],
    masks: MaskReading | None,
    pair: PairReading | None,
    skeletons: Any,
    collate: Any,
    *,
    is_plain: bool,
    is_prefetched: bool,
) -> Output:
    """Makes what turns our batches into the old loader's.

    Args:
        views: the transform of each picture, which `transform` joins.
        skeletons: those of all samples.
        collate: the old collate function if it has to be called as it is; None: it has not.
        is_plain: whether samples are pairs of an image and a class number.
        is_prefetched: whether timm's PrefetchLoader normalizes the images.

    Raises:
        NotConvertibleError: the pictures have another dtype, or the collate function uses a PIL
            image.
    """
    pictures, output = _pictures(seen, transform, views, is_prefetched, masks, pair), Output()

    # what differs from a list of images and labels is made from the skeletons
    is_ours = is_plain and (is_prefetched or _equals_ours(pictures[0], transform))
    if collate or not is_ours:
        # samples may have their pictures, or one twice, in places of their own
        first = slots_in(skeletons[0])
        is_alike = all(slots_in(each) == first for each in skeletons)
        output = Output(pictures, skeletons, collate, is_alike)
    if any(shown.kind == "pil" for shown, _ in seen.slots):
        _try_output(output, seen, transform)
    return output


def _pictures(
    seen: Trace,
    transform: Transform,
    views: list[Transform],
    is_prefetched: bool,
    masks: MaskReading | None,
    pair: PairReading | None,
) -> tuple[OutputPicture | OutputMask | OutputTarget, ...]:
    """What goes into each slot of a sample."""
    # views are in the order of the chains, with PIL images and masks left out
    places = iter(zip(view_places(views), views, strict=True))
    pictures: list[OutputPicture | OutputMask | OutputTarget] = []
    for slot, (shown, chains) in enumerate(seen.slots):
        if shown.is_mask and masks:
            pictures.append(masks.output(slot, shown))
            continue
        if pair and pair.target in chains:
            pictures.append(pair.output(shown))
            continue
        if shown.kind == "pil":
            pictures.append(OutputPicture((("", 0),), False, False, "pil", torch.float32))
            continue

        of_slot = [next(places) for _ in chains]
        dtype = getattr(torch, shown.dtype.removeprefix("torch."))
        made = made_dtype(of_slot[0][1])
        if not is_prefetched:
            refuse_rounding(seen.name, dtype, of_slot[0][1])

        # below a PrefetchLoader the data set has uint8, and what comes out is as our transform's
        pictures.append(
            OutputPicture(
                tuple(place for place, _ in of_slot),
                shown.is_stacked,
                shown.matches[0].layout == "HWC",
                shown.kind,
                made if is_prefetched else dtype,
            )
        )
    return tuple(pictures)


def made_dtype(transform: Transform) -> torch.dtype:
    """The dtype of the images that a transform makes of an old one's steps."""
    return torch.uint8 if transform.dtype == "uint8" else torch.float32


def refuse_rounding(name: str, dtype: torch.dtype, transform: Transform) -> None:
    """Refuses images of integers where ours are floats, which would lose what is behind the
    point.
    """
    made, size = made_dtype(transform), (transform.channels, *transform.shape)
    refuse_unless(
        dtype.is_floating_point or not made.is_floating_point,
        name,
        f"its images are {dtype} of {size}, and ours {made} of {size}",
        "end the transform with ToTensor()",
    )


def _equals_ours(picture: OutputPicture | OutputMask | OutputTarget, transform: Transform) -> bool:
    """Whether the pictures of our batches are those of the old loader without any change."""
    if not isinstance(picture, OutputPicture):
        return False
    return not picture.is_hwc and not picture.is_stacked and picture.dtype == made_dtype(transform)


def _try_output(output: Output, seen: Trace, transform: Transform) -> None:
    """Refuses a collate function that uses PIL images, which do not exist in our batches."""
    # two black images are enough: `Unused` raises an error as soon as it is used
    count = min(2, len(output.skeletons or ()))
    ids = torch.arange(count, dtype=torch.int64, device="cpu")
    shape = count, transform.channels, *transform.shape
    images = torch.zeros(shape, dtype=torch.float32, device="cpu")
    masks = torch.zeros((count, *transform.shape), dtype=torch.int64, device="cpu")
    try:
        output(Batch(images, ids, ids, {"mask": masks}))
    except Exception:  # any error of a function that we do not know
        refuse_pil(seen, output.collate)


def refuse_pil(seen: Trace, collate: Any = None) -> None:
    """Refuses samples that have a PIL image in them.

    Args:
        collate: the user's own collate function, which takes them; None: it is torch's.
    """
    for shown, chains in seen.slots:
        if shown.kind != "pil":
            continue
        has_steps = any(chain.steps for chain in chains)
        collate = getattr(collate, "func", collate)
        name = f"collate_fn={getattr(collate, '__qualname__', type(collate).__name__)}"
        instead = (
            f"end it with PILToTensor(), and leave {name} out if it only stacks bytes, as torch's "
            "does with tensors; else let it take tensors (about 3 lines)"
            if collate and has_steps
            else f"give the data set the transforms that {name} does (about 3 lines)"
            if collate
            else "end it with ToTensor(), or PILToTensor() for bytes"
            if has_steps
            else "end a transform with ToTensor()"
        )
        raise NotConvertibleError(
            "the transform" if has_steps else "a data set without transform",
            "it ends in PIL images" if has_steps else "PIL images make no batch",
            instead,
        )
