"""Samplings: which samples make an epoch, and in which order.

Each has a row in the table `SAMPLINGS`. A sampling holds the options; its `order` makes
an `Order` for one manifest, seed and global batch size, which turns places into ids.
`parse_sampling` makes one from a name or a mapping, and `choose_sampling` chooses that of a loader.
docs/sampling.md compares them.
"""

from dali_pipes.plan.sampling.base import SAMPLINGS as SAMPLINGS
from dali_pipes.plan.sampling.base import Sampling as Sampling
from dali_pipes.plan.sampling.base import parse_sampling as parse_sampling
from dali_pipes.plan.sampling.samplings import Balanced as Balanced
from dali_pipes.plan.sampling.samplings import Mixture as Mixture
from dali_pipes.plan.sampling.samplings import PerClass as PerClass
from dali_pipes.plan.sampling.samplings import Repeated as Repeated
from dali_pipes.plan.sampling.samplings import Schedule as Schedule
from dali_pipes.plan.sampling.samplings import Sequential as Sequential
from dali_pipes.plan.sampling.samplings import Uniform as Uniform
from dali_pipes.plan.sampling.samplings import Weighted as Weighted
from dali_pipes.plan.sampling.samplings import Windows as Windows
from dali_pipes.plan.sampling.samplings import choose_sampling as choose_sampling

# A row is a sampling by its name: options of the group sampling extend the schema NAME_schema.
SAMPLINGS.update(
    {
        "uniform": Uniform,
        "sequential": Sequential,
        "weighted": Weighted,
        "balanced": Balanced,
        "per_class": PerClass,
        "repeated": Repeated,
        "mixture": Mixture,
        "schedule": Schedule,
        "windows": Windows,
    }
)
