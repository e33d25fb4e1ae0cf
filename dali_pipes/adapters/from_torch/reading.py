"""What has been read of a live transform, and which of our transforms it is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dali_pipes.adapters.from_torch.refusal import NotConvertibleError, Step, refuse_unless
from dali_pipes.errors import OptionError
from dali_pipes.plan.transforms import CenterCropTransform, EvalTransform, RandomCropTransform, TrainTransform, Transform

Size = int | tuple[int, int]  # of a square, or height and width


@dataclass(slots=True)
class Reading:
    """What has been read of a transform so far.

    Attributes:
        resize: of the shorter side, or height and width; None: the image as it is stored.
        crop: the kind of the crop, and our transform's options for it.
        tensor, floats: whether the image is a tensor by now, and one of floats.
        geometry: the live steps that move pixels.
        steps, refusals: all steps so far, and what is wrong with those that cannot be carried over.
    """

    resize: Size | None = None
    crop: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    interpolation: str = "bilinear"
    flips: dict[str, float] = field(default_factory=dict)
    augment: list[dict[str, Any]] = field(default_factory=list)
    affine: bool = False
    tensor: bool = False
    floats: bool = False
    normalized: dict[str, Any] | None = None
    erased: bool = False
    geometry: list[Any] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    refusals: list[NotConvertibleError] = field(default_factory=list)

    def built(self, uniform: Callable[[], Size | None]) -> Transform:
        """Our transform.

        Args:
            uniform: the size of all images, if they have one size.
        """
        refuse_unless(self.tensor, "the transform", "it ends in PIL images", "end it with ToTensor(), or PILToTensor() for bytes")
        try:
            return self._made(uniform)
        except OptionError as error:
            raise NotConvertibleError("the transform", str(error), "change that in it") from None

    def _made(self, uniform: Callable[[], Size | None]) -> Transform:
        size, options = self._size(uniform), {name: value for name, value in self.options.items() if name != "size"}
        common: dict[str, Any] = {"size": size, "interpolation": self.interpolation, **self._values()}
        random: dict[str, Any] = {"flip": 0.0, **self.flips, "augment": self.augment}
        if self.crop == "resized":
            return TrainTransform(**common, **random, **options)
        if self.crop == "random":
            return RandomCropTransform(**common, **random, **options, resize=self.resize)
        if self.flips or self.augment:
            return CenterCropTransform(**common, **random, resize=self.resize)
        return EvalTransform(**common, resize=self.resize)

    def _size(self, uniform: Callable[[], Size | None]) -> Size:
        if self.crop:
            return self.options["size"]
        size = None if isinstance(self.resize, int) else self.resize or uniform()
        if size is None:
            what = f"Resize({self.resize})" if self.resize else "a transform without Resize and crop"
            instead = "add CenterCrop(size), or resize to (height, width)"
            raise NotConvertibleError(what, "images keep their own sizes, so they make no batch", instead)
        return size

    def _values(self) -> dict[str, Any]:
        if not self.floats:
            return {"dtype": "uint8"}
        return self.normalized or {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
