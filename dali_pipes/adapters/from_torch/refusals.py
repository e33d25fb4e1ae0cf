"""Code of a data set that no plan can carry out: its refusals, and what a user can do instead."""

from collections.abc import Sequence
from typing import Any

from dali_pipes.adapters.from_torch.chains import Chain
from dali_pipes.adapters.from_torch.recording.random_states import STATES
from dali_pipes.adapters.from_torch.recording.visit import Opened
from dali_pipes.adapters.transforms.reading import (
    NotConvertibleError,
    is_of,
    refuse_unless,
)

# steps that draw nothing, so that two pictures may come out of one call
_FIXED = (
    *("ToPILImage", "PILToTensor", "ToImage", "ToTensor", "ConvertImageDtype", "ToDtype", "RGB"),
    *("Resize", "CenterCrop", "FiveCrop", "TenCrop", "Pad", "Normalize", "ToPureTensor"),
)
# what a user can do about code of their own
IN_COLLATE = "in the collate function, which is called as it is"
INTO_COLLATE = "into the collate function, which is called as it is (as many lines as it has)"


def is_fixed(step: Any) -> bool:
    """Whether a step of a library draws nothing."""
    return is_of(step, "torchvision", *_FIXED) or is_of(step, "timm", *_FIXED)


def refuse_unknown_bytes(name: str, opened: Sequence[Opened], what: str = "what") -> None:
    """Refuses bytes that are no file, and lie in no file as they are.

    Args:
        what: "what", or which sample it is.
    """
    unknown = next((each for each in opened if each.path is None), None)
    if unknown is None:
        return
    place = f" ({unknown.place})" if unknown.place else ""
    raise NotConvertibleError(
        name,
        f"{what} {unknown.opener}{place} gets lies in no file that is open: it is unpacked by its "
        "code, or was read into memory before",
        'write each image to a file of its own (about 3 lines: Path(f"{index}.jpg").write_bytes('
        "data) for all), or to shards that dali_pipes reads (docs/shards.md)",
    )


def describe_steps(slots: Sequence[Sequence[Chain]]) -> str:
    """The transforms of each picture of some slots, for people."""
    steps = [
        ", ".join(type(step).__name__ for step in chain.steps) or "no transform"
        for chains in slots
        for chain in chains
    ]
    return "; ".join(steps) or "it returns no picture"


def refuse_together(name: str, is_same: bool) -> None:
    """Refuses a data set whose `__getitems__` makes something else of several samples."""
    refuse_unless(
        is_same,
        name,
        "its __getitems__ makes something else of a batch than of single samples",
        "move what depends on the batch into the collate function, or into batch_transform= "
        "of build_loader",
    )


def refuse_drawn(name: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    """Refuses code that draws random numbers outside of transforms."""
    drawn = [each for each, a, b in zip(STATES, before, after, strict=True) if a != b]
    refuse_unless(
        not drawn,
        name,
        f"code of its own draws random numbers (of {' and '.join(drawn)})",
        f"draw them {IN_COLLATE} (about 3 lines)",
    )


def is_of_library(error: BaseException) -> bool:
    """Whether an error was raised within a library that the user's code called."""
    # the innermost frame is the one that raised it
    last = error.__traceback__
    while last and last.tb_next:
        last = last.tb_next
    name = last.tb_frame.f_globals.get("__name__", "") if last else ""
    return name.partition(".")[0] in (
        *("torch", "torchvision", "timm", "albumentations", "PIL", "numpy", "cv2", "albucore"),
    )


def describe_error(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:100] if lines else ''}"
