"""The job `demo`: its options, and which of the two demo sets they ask for."""

from dataclasses import dataclass

from dali_pipes.checks import check_int, check_min
from dali_pipes.data.demo import make_demo_set
from dali_pipes.options import check_options, option
from dali_pipes.tools.demo.objects import make_demo_objects


@dataclass(kw_only=True, slots=True)
class DemoConfig:
    """dali-pipes demo.

    Attributes:
        objects: makes pictures of shapes with boxes, keypoints, outlines, masks and captions
            instead of images with one class each.
        train: number of training images.
        val: number of validation images.
        seed: for what is drawn; the same numbers and seed make the same files.
        out: folder for the set; one that is there already is left as it is.
    """

    objects: bool = False
    train: int = option(1000, check_min, 1)
    val: int = option(200, check_min, 1)
    seed: int = option(0, check_int, 0)
    out: str = "data/demo"

    def __post_init__(self) -> None:
        check_options(self)


def demo(config: DemoConfig) -> None:
    """Makes the set, and prints its folder."""
    make = make_demo_objects if config.objects else make_demo_set
    print(make(config.out, train=config.train, val=config.val, seed=config.seed))
