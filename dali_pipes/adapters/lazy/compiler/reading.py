"""Recipes become rows: `read(recipe)`."""

from dali_pipes.adapters.lazy.compiler.row import Row
from dali_pipes.adapters.lazy.recipes import Recipe
from dali_pipes.adapters.lazy.steps.step import STEPS, NoPlace

# torchvision's ImageReadMode; OpenCV's flags: of color, and of red, green and blue in this order
_GRAY, _RGB, _IN_COLOR, _IMREAD_RGB = 1, 3, 1 | 256, 256


def read(recipe: Recipe) -> Row:
    """Reads a recipe from front to back.

    Raises:
        NoPlace: the plan has no place for a note.
    """
    row = _start(recipe)
    for name, args, options in recipe.notes:
        step = STEPS.get(name)
        if step is None or step.plan is None:
            raise NoPlace(name)
        try:
            step.plan(row, *args, **options)
        except NoPlace:
            raise
        except Exception as error:
            # of arguments that nobody has thought of, with which the library's function is right
            raise NoPlace(
                f"{name} with such arguments ({type(error).__name__}: {error})"
            ) from error
    return row


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
