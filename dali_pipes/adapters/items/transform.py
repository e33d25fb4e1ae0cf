"""`ItemTransform`: what is made of the pictures of an item."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self

from dali_pipes.errors import ConfigError, OptionError
from dali_pipes.plan.transforms import Transform


@dataclass(frozen=True, slots=True)
class ItemPicture:
    """One picture of every item.

    Attributes:
        place: where it is in an item, as Python writes it: "[0]['image']".
        transform: what is made of it; None: not known yet.
        draws: the name of its random numbers; None: they are its own.
    """

    place: str
    transform: Transform | None
    draws: str | None

    @property
    def views(self) -> int:
        """How many views are made of it."""
        return sum(len(group) for group in self.transform.groups) if self.transform else 0


@dataclass(kw_only=True, slots=True)
class ItemTransform(Transform):
    """The transforms of the pictures of an item, each in its place.

    A plan of items has no images, and so no geometry: its planned batches have ids only. The
    backend of items plans their pictures when it knows their files.

    Attributes:
        pictures: in the order of their places.
    """

    pictures: list[ItemPicture] = field(default_factory=list)

    @classmethod
    def of(cls, pictures: Sequence[ItemPicture], default: Transform | None) -> Self:
        """Gives each picture its transform.

        Args:
            default: of those that have none of their own.

        Raises:
            ConfigError: a picture has no transform, or the default none that needs it; pictures
                with the same random numbers have another number of views; or a transform is of a
                kind that items cannot have.
        """
        own = [each for each in pictures if each.transform is not None]
        if default is not None and len(own) == len(pictures):
            raise ConfigError(
                "transform is given twice: to load, and to every Encoded; leave one of them out"
            )
        if default is None and len(own) < len(pictures):
            place = next(each.place for each in pictures if each.transform is None)
            raise ConfigError(
                f"the picture at {place or 'the item itself'} has no transform; give one to load, "
                "or to its Encoded"
            )

        complete = [replace(each, transform=each.transform or default) for each in pictures]
        for each in complete:
            _refuse_unfit(each.transform)
        for name in {each.draws for each in complete} - {None}:
            alike = [each for each in complete if each.draws == name]
            if len({each.views for each in alike}) > 1:
                raise ConfigError(
                    f"the pictures with draws={name!r} ({', '.join(map(_place, alike))}) have "
                    "another number of views each; give them transforms with equally many"
                )
        return cls(pictures=complete)

    @property
    def training(self) -> bool:
        return any(each.transform.training for each in self.pictures if each.transform)

    @property
    def groups(self) -> tuple[tuple[Transform, ...], ...]:
        return ()

    def geometry(self, source: Any, draws: Any) -> NoReturn:
        raise NotImplementedError("an item has no pixels of its own")

    @property
    def first_views(self) -> list[int]:
        """The number of the first view of each picture, counted over all pictures of an item.

        Pictures with the same draws have the same numbers.
        """
        known: dict[str, int] = {}
        numbers, count = [], 0
        for each in self.pictures:
            if each.draws is not None and each.draws in known:
                numbers.append(known[each.draws])
                continue
            numbers.append(count)
            if each.draws is not None:
                known[each.draws] = count
            count += each.views
        return numbers


def _place(picture: ItemPicture) -> str:
    return picture.place or "the item itself"


def _refuse_unfit(transform: Any) -> None:
    if getattr(transform, "sizes", None):
        raise OptionError(
            type(transform),
            "sizes changes the size of the images from an epoch on, which a loader of items does "
            "not do; build a loader for each size, and go on with set_epoch()",
        )
    if transform.target_images:
        raise OptionError(
            type(transform),
            "target_images names further images of a manifest, and items have none; return each as "
            "an Encoded with the same draws",
        )
    if transform.pads_batches:
        raise OptionError(
            type(transform),
            "pads images to the largest of a batch, which a loader of items does not do; take a "
            "transform that makes images of one size",
        )
