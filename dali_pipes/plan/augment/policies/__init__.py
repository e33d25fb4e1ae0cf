"""Policies: each draws with the same probabilities as the torchvision transform of the same name;
`Augment` is a function of the user's.

Each has a row in the table `POLICIES`. `augmenter.py` runs a list of them.
"""

from typing import Any

from dali_pipes.plan.augment.policies.augment import Augment as Augment
from dali_pipes.plan.augment.policies.base import Policy as Policy
from dali_pipes.plan.augment.policies.drawn import AutoAugment as AutoAugment
from dali_pipes.plan.augment.policies.drawn import RandAugment as RandAugment
from dali_pipes.plan.augment.policies.drawn import (
    TrivialAugmentWide as TrivialAugmentWide,
)
from dali_pipes.plan.augment.policies.erasing import RandomErasing as RandomErasing
from dali_pipes.plan.augment.policies.erasing import (
    TimmRandomErasing as TimmRandomErasing,
)
from dali_pipes.plan.augment.policies.operations import ColorJitter as ColorJitter
from dali_pipes.plan.augment.policies.operations import GaussianBlur as GaussianBlur
from dali_pipes.plan.augment.policies.operations import (
    RandomAdjustSharpness as RandomAdjustSharpness,
)
from dali_pipes.plan.augment.policies.operations import (
    RandomAutocontrast as RandomAutocontrast,
)
from dali_pipes.plan.augment.policies.operations import RandomEqualize as RandomEqualize
from dali_pipes.plan.augment.policies.operations import RandomGrayscale as RandomGrayscale
from dali_pipes.plan.augment.policies.operations import RandomInvert as RandomInvert
from dali_pipes.plan.augment.policies.operations import RandomPosterize as RandomPosterize
from dali_pipes.plan.augment.policies.operations import RandomRotation as RandomRotation
from dali_pipes.plan.augment.policies.operations import RandomSolarize as RandomSolarize
from dali_pipes.plan.augment.policies.timm_rand_augment import TimmRandAugment as TimmRandAugment

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
