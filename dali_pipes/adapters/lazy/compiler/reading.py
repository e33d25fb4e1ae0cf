"""Recipes become rows: `read(recipe)`."""

from typing import Any, NamedTuple

import torch

from dali_pipes.adapters.lazy.compiler.row import Row
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.steps.step import STEPS, NoPlace

# torchvision's ImageReadMode; OpenCV's flags: of color, and of red, green and blue in this order
_GRAY, _RGB, _IN_COLOR, _IMREAD_RGB = 1, 3, 1 | 256, 256


class Reading(NamedTuple):
    """What becomes of a recipe.

    Attributes:
        row: None: the plan has no place for it.
        why: what it has no place for.
        front: after how many of the notes it still is pixels from 0 to 255 that are cut or resized
            already. A backend may make these, and the rest is done as noted.
    """

    row: Row | None
    why: str
    front: int


# What the last notes of a recipe make of its numbers and axes, if they change nothing else: by
# what these were, and the notes. They are the same for almost all pictures of a program, and would
# take more than half of the time.
_TAILS: dict[Any, tuple[Any, ...]] = {}
_FIRST_NOTES: set[str] = set()  # the names of the first notes of tails
_MOST_TAILS = 1024


def read(recipe: Recipe) -> Reading:
    """Reads a recipe from front to back."""
    front = start = 0
    notes = recipe.notes
    try:
        row = _start(recipe)
        whole = row.region
        for at, (name, args, options) in enumerate(notes):
            if name in _FIRST_NOTES and row.scale is None and not row.erased:
                tail = _TAILS.get(_key_of(row, notes[at:]))
                if tail is not None:
                    row.scale, row.plus, row.dtype, row.axes, row.form, row.is_bgr = tail
                    break
            changes = row.changes
            _plan(row, name, args, options)
            if row.changes != changes:
                start = at + 1
            if row.scale is None and (row.resized or row.region != whole):
                front = at + 1
        else:
            if start < len(notes) and not row.erased and len(_TAILS) < _MOST_TAILS:
                _keep_tail(row, read_front(recipe, start), notes[start:])
    except NoPlace as why:
        return Reading(None, str(why), front)
    if row.scale is None and row.dtype == torch.uint8:
        front = 0
    return Reading(row, "", front)


def _keep_tail(row: Row, before: Row, notes: tuple[Any, ...]) -> None:
    key = _key_of(before, notes)
    if key is not None and before.scale is None:
        _TAILS[key] = row.scale, row.plus, row.dtype, row.axes, row.form, row.is_bgr
        _FIRST_NOTES.add(notes[0][0])


def _key_of(row: Row, notes: tuple[Any, ...]) -> Any:
    """None: some arguments cannot be compared."""
    key = row.axes, row.form, row.channels, row.is_bgr, row.dtype, *[each[:2] for each in notes]
    try:
        hash(key)
    except TypeError:
        return None
    return None if any(each[2] for each in notes) else key


def read_front(recipe: Recipe, count: int) -> Row:
    """The row of the first notes, for which `read` has found a place."""
    row = _start(recipe)
    for name, args, options in recipe.notes[:count]:
        _plan(row, name, args, options)
    return row


def _plan(row: Row, name: str, args: Any, options: Any) -> None:
    step = STEPS.get(name)
    if step is None or step.plan is None:
        raise NoPlace(name)
    try:
        step.plan(row, *args, **options)
    except NoPlace:
        raise
    except Exception as error:
        # of arguments that nobody has thought of; what is done as noted is right with all of them
        raise NoPlace(f"{name} with such arguments ({type(error).__name__}: {error})") from error


def _start(recipe: Recipe) -> Row:
    """The row of a picture to which nothing was done."""
    source, size = recipe.source, (recipe.size[1], recipe.size[0])
    if recipe.mode not in ("RGB", "L"):
        raise NoPlace(f"pictures of mode {recipe.mode}")
    if not source.is_whole:
        raise NoPlace("files that do not end as a JPEG or a PNG")

    is_bgr, is_color = False, recipe.mode == "RGB"
    if source.opener == "pillow":
        # its kind, whether truncated files are right, and what `draft` has chosen
        if source.options[2:] not in ((None,), ()):
            raise NoPlace("a JPEG that is decoded in a smaller size")
        form, axes = "picture", "HWC"
    elif source.opener == "torchvision":
        form, axes, mode = "tensor", "CHW", source.options[0]
        becomes_color = mode == _RGB or (is_color and mode != _GRAY)
    else:
        form, axes, flags = "array", "HWC", source.options[0]
        becomes_color = is_color if flags < 0 else bool(flags & _IN_COLOR)
        is_bgr = becomes_color and (flags < 0 or not flags & _IMREAD_RGB)
    if form != "picture":
        if is_color and not becomes_color:
            # they take the luma of a JPEG, and do not compute it of red, green and blue
            raise NoPlace(f"colors that {source.opener} decodes to gray")
        is_color = becomes_color

    row = Row(size, 3 if is_color else 1, axes if is_color or form == "tensor" else "HW", form)
    row.is_bgr, row.has_colors = is_bgr, recipe.mode == "RGB"
    return row
