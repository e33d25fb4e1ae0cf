"""Policies: each draws with the same probabilities as the torchvision transform of the same name;
`Augment` is a function of the user's.

Each has a file, and a row in the table `POLICIES`. `augmenter.py` runs a list of them.
"""

from typing import Any

from dali_pipes.plan.augment.policies.augment import Augment as Augment
from dali_pipes.plan.augment.policies.auto_augment import AutoAugment as AutoAugment
from dali_pipes.plan.augment.policies.base import Policy as Policy
from dali_pipes.plan.augment.policies.color_jitter import ColorJitter as ColorJitter
from dali_pipes.plan.augment.policies.gaussian_blur import GaussianBlur as GaussianBlur
from dali_pipes.plan.augment.policies.rand_augment import RandAugment as RandAugment
from dali_pipes.plan.augment.policies.random_adjust_sharpness import (
    RandomAdjustSharpness as RandomAdjustSharpness,
)
from dali_pipes.plan.augment.policies.random_autocontrast import (
    RandomAutocontrast as RandomAutocontrast,
)
from dali_pipes.plan.augment.policies.random_equalize import RandomEqualize as RandomEqualize
from dali_pipes.plan.augment.policies.random_erasing import RandomErasing as RandomErasing
from dali_pipes.plan.augment.policies.random_grayscale import RandomGrayscale as RandomGrayscale
from dali_pipes.plan.augment.policies.random_invert import RandomInvert as RandomInvert
from dali_pipes.plan.augment.policies.random_posterize import RandomPosterize as RandomPosterize
from dali_pipes.plan.augment.policies.random_rotation import RandomRotation as RandomRotation
from dali_pipes.plan.augment.policies.random_solarize import RandomSolarize as RandomSolarize
from dali_pipes.plan.augment.policies.timm_rand_augment import TimmRandAugment as TimmRandAugment
from dali_pipes.plan.augment.policies.timm_random_erasing import (
    TimmRandomErasing as TimmRandomErasing,
)
from dali_pipes.plan.augment.policies.trivial_augment_wide import (
    TrivialAugmentWide as TrivialAugmentWide,
)

# A row is a policy by its name in `augment`.
POLICIES: dict[str, type[Any]] = {
    "TrivialAugmentWide": TrivialAugmentWide,
    "RandAugment": RandAugment,
    "AutoAugment": AutoAugment,
    "ColorJitter": ColorJitter,
    "RandomGrayscale": RandomGrayscale,
    "RandomSolarize": RandomSolarize,
    "RandomPosterize": RandomPosterize,
    "RandomInvert": RandomInvert,
    "RandomAutocontrast": RandomAutocontrast,
    "RandomEqualize": RandomEqualize,
    "RandomAdjustSharpness": RandomAdjustSharpness,
    "GaussianBlur": GaussianBlur,
    "RandomRotation": RandomRotation,
    "Augment": Augment,
    "TimmRandAugment": TimmRandAugment,
    "RandomErasing": RandomErasing,
    "TimmRandomErasing": TimmRandomErasing,
}
