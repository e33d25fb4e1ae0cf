"""What several readers of steps check, note and say."""

from collections.abc import Callable
from types import FunctionType
from typing import Any

from dali_pipes.adapters.from_torch.reading import Reading, refuse_unless
from dali_pipes.adapters.from_torch.recording.steps import is_library_code, is_transform_class

StepReader = Callable[[Reading, Any], str]
KEEP = "else keep your DataLoader"
AS_OURS = (
    "put the steps in this order if your training may change so: resize and crop, flips, "
    f"augmentation, ToTensor, Normalize, RandomErasing; {KEEP}"
)


def refuse_after(wrong: Any, step: Any, others: str, instead: str = AS_OURS) -> None:
    problem = f"it comes after {others}, in another order of steps than ours"
    refuse_unless(not wrong, type(step).__name__, problem, instead)


def refuse_altered(step: Any) -> None:
    """Refuses a step of a library whose methods the program has replaced, or that has hooks."""
    own = vars(step) if hasattr(step, "__dict__") else {}
    hooks = "a hook" * any(own.get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))
    methods = {
        name: getattr(member, "__func__", member)
        for kind in type(step).__mro__[::-1]
        # libraries and programs put methods of their own into torch.nn.Module
        if is_transform_class(kind)
        for name, member in vars(kind).items()
        if isinstance(getattr(member, "__func__", member), FunctionType)
    }
    replaced = [
        name
        for name, method in methods.items()
        if name in own or not (name.startswith("__") or is_library_code(method))
    ]
    what = hooks or (f"a {replaced[0]} of its own" if replaced else "")
    refuse_unless(
        not what,
        type(step).__name__,
        f"it has {what}, which may do anything",
        "write that as a transform of its own",
    )


def describe_step(step: Any) -> str:
    # some transforms print themselves over several lines
    text = getattr(step, "__name__", " ".join(repr(step).split()))
    return text if len(text) <= 150 else f"{type(step).__name__}(…)"


def describe_options(options: dict[str, Any]) -> str:
    def short(value: Any) -> Any:
        return (
            tuple(map(short, value))
            if isinstance(value, tuple)
            else round(value, 4)
            if isinstance(value, float)
            else value
        )

    return ", ".join(f"{name}={short(value)}" for name, value in options.items())


def check_fill(step: Any, name: str) -> None:
    fill = getattr(step, "fill", None)
    # v2 has a dict of fills by type, in which that of masks says nothing about images; either
    # version may have one number for each channel
    values = (
        [each for kind, each in fill.items() if getattr(kind, "__name__", "") != "Mask"]
        if isinstance(fill, dict)
        else list(fill)
        if isinstance(fill, (list, tuple))
        else [fill]
    )

    refuse_unless(
        all(not value for value in values),
        name,
        f"fill={fill}",
        "areas from outside the image are black here: fill=0",
    )


def note_policy(reading: Reading, step: Any, name: str, **options: Any) -> str:
    """Notes a policy of `augment` with its options."""
    refuse_unless(
        not reading.early,
        type(step).__name__,
        "it comes before a crop or a resize, in another order of steps than ours",
        AS_OURS,
    )
    late = reading.floats or reading.erased or reading.has_functions
    refuse_after(late, step, "ToTensor or RandomErasing")
    if reading.applied < 1:
        options["p"] = reading.applied * options.get("p", 1.0)
    reading.augment.append({"name": name, **options})
    # torchvision keeps the edges of PIL images sharp (docs/from_torch.md)
    edges = options.get("interpolation") == "bilinear" and not (reading.tensor or "fill" in options)
    note = (
        "; edges blend with the black around them, as torchvision's of tensors do" if edges else ""
    )
    return f"augment: {name}({describe_options(options)}){note}"
