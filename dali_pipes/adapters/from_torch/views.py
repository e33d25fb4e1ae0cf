"""Several pictures of one file: the transforms of each, as one transform with several views."""

from dataclasses import fields
from typing import Any

from dali_pipes.adapters.transforms.reading import NotConvertibleError, refuse_unless
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import (
    CornerCrop,
    TenCropTransform,
    TrainTransform,
    Transform,
    ViewsTransform,
)
from dali_pipes.plan.transforms.views import VIEW_OPTIONS


def join_views(transforms: list[Transform]) -> Transform:
    """Joins transforms to one whose views are these, in their order. Views of one size share a
    name.

    Raises:
        NotConvertibleError: they differ in more than views may.
    """
    if any(isinstance(each, CornerCrop) for each in transforms):
        return _join_crops(transforms)
    if len(transforms) == 1:
        return transforms[0]
    name = f"{len(transforms)} pictures of each file"
    plain = all(type(each) is TrainTransform for each in transforms)
    kinds = sorted({type(each).__name__ for each in transforms})
    refuse_unless(
        plain,
        name,
        f"they are made by {', '.join(kinds)}, and our views by random resized crops",
        "begin each with RandomResizedCrop, or load them with several loaders of one seed",
    )

    views: dict[str, list[dict[str, Any]]] = {}
    shared: list[dict[str, Any]] = []
    for transform in transforms:
        values = {each.name: getattr(transform, each.name) for each in fields(TrainTransform)}
        views.setdefault(_name(transform), []).append({key: values[key] for key in VIEW_OPTIONS})
        shared.append({key: value for key, value in values.items() if key not in VIEW_OPTIONS})
    refuse_unless(
        all(each == shared[0] for each in shared),
        name,
        "they are normalized in different ways",
        "give all of them one Normalize",
    )

    # ViewsTransform may refuse what each of them allows
    try:
        return ViewsTransform(**shared[0], views=views)
    except ConfigError as error:
        raise NotConvertibleError(name, str(error), "change that in it") from None


def _join_crops(crops: list[Transform]) -> TenCropTransform:
    """The transform whose views are these crops."""
    shared = {each.name: getattr(crops[0], each.name) for each in fields(Transform)}
    shared["resize"] = getattr(crops[0], "resize", None)
    for mirrored in (False, True):
        for vertical_flip in (False, True):
            options: dict[str, Any] = {"mirrored": mirrored, "vertical_flip": vertical_flip}
            whole = TenCropTransform(**shared, **options)
            if list(whole.groups[0]) == crops:
                return whole
    raise NotConvertibleError(
        "FiveCrop or TenCrop",
        f"a sample has {len(crops)} pictures of it, which are not all of its crops in their order, "
        "or are changed in different ways",
        "return all crops stacked, and choose among them in the collate function (about 3 lines)",
    )


def _name(transform: Transform) -> str:
    if isinstance(transform, CornerCrop):
        return TenCropTransform().view_names[0]
    height, width = transform.shape
    return f"{height}x{width}"


def view_places(transforms: list[Transform]) -> list[tuple[str, int]]:
    """Where a batch has the picture of each transform: the view's name, and the place among the
    views of that name.
    """
    if len(transforms) == 1:
        return [("", 0)]
    seen: dict[str, int] = {}
    places = []
    for each in transforms:
        name = _name(each)
        places.append((name, seen.get(name, 0)))
        seen[name] = seen.get(name, 0) + 1
    return places
