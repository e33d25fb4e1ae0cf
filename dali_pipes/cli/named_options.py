"""Options of groups that are a name and hardly a value, such as `sampling=balanced` and
`model=resnet50`.

They are entries of Hydra's ConfigStore, and those that set more are files of conf/. A user's file
of the same name takes the place of either.
"""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from dali_pipes.plan.sampling import SAMPLINGS

NETWORKS = (
    "convnext_tiny",
    "efficientnet_v2_s",
    "mobilenet_v3_large",
    "resnet18",
    "resnet50",
    "vit_b_16",
)


@dataclass(frozen=True)
class NamedOption:
    """What a name stands for.

    Attributes:
        text: what --help says of it; "": the name says it.
        values: what it sets; the rest is as its schema has it.
        schema: the name of the schema that it extends, in its group.
    """

    text: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    schema: str = "schema"


def _of_schema(name: str, text: str, **values: Any) -> NamedOption:
    return NamedOption(text, values, f"{name}_schema")


def _schedule(name: str, text: str, **values: Any) -> NamedOption:
    return NamedOption(text, {"name": name, **values})


def _first_sentence(described: type) -> str:
    sentence, point, _ = " ".join((inspect.getdoc(described) or "").split()).partition(". ")
    return f"{sentence}." if point else sentence


NAMED_OPTIONS: dict[str, dict[str, NamedOption]] = {
    "arm": {
        "decode_regions": _of_schema(
            "decoding",
            "Decoding alone on the CPU, of the planned regions: the least that a CPU loader can "
            "cost. For comparisons, not training.",
            decode="region",
        ),
        "decode_whole": _of_schema(
            "decoding",
            "Decoding alone on the CPU, of whole images: the least for a loader that decodes them "
            "whole. For comparisons, not training.",
            decode="whole",
        ),
        "synthetic": _of_schema(
            "synthetic", "Constant images that are already on the device: the upper bound."
        ),
    },
    "loader": {
        "torch_auto": _of_schema(
            "torch",
            "The baseline with the fastest decoder whose pixels are Pillow's; a result says which "
            "one it was.",
            decoder="auto",
        ),
        "torch_torchvision": _of_schema(
            "torch",
            "The baseline with torchvision's libjpeg binding instead of Pillow.",
            decoder="torchvision",
        ),
    },
    "model": {
        "auto": NamedOption(
            "For the benchmark: resnet50 on a GPU, shufflenet_v2_x0_5 without one.", {"name": None}
        ),
        **{name: NamedOption(values={"name": name}) for name in NETWORKS},
    },
    "optimizer": {
        "sgd": NamedOption(
            "SGD with momentum; the rate is scaled linearly with the global batch.",
            {"name": "sgd"},
        ),
    },
    "sampling": {
        name: _of_schema(name, _first_sentence(sampling)) for name, sampling in SAMPLINGS.items()
    },
    "schedule": {
        "constant": _schedule("constant", "The rate of the end of the warm-up."),
        "cosine": _schedule("cosine", "Half a cosine."),
        "exponential": _schedule(
            "exponential",
            "PyTorch's ExponentialLR, but changed with every step; decay_rate is gamma. unit=epoch "
            "changes the rate once per epoch.",
            decay_epochs=1,
            decay_rate=0.97,
        ),
        "linear": _schedule("linear", "A straight line."),
        "plateau": _schedule(
            "plateau",
            "The rate falls each time that `monitor` was no better in more than `patience` "
            "evaluations.",
        ),
        "step": _schedule(
            "step",
            "PyTorch's StepLR with torchvision's step_size and gamma: a tenth every 30 epochs. "
            "decay_epochs is step_size, decay_rate gamma.",
            decay_epochs=30,
            decay_rate=0.1,
        ),
        "wsd": _schedule(
            "wsd",
            "Warm-up, stable, decay: the rate stays, and falls in the last part of the run, the "
            "cooldown.",
            cooldown=0.2,
        ),
    },
}


def store_named_options(users: Path | None) -> None:
    """Makes them known to Hydra.

    Args:
        users: the folder of the user's own configurations. A file in it with the name of one of
            these is taken instead: Hydra would merge the two.
    """
    store = ConfigStore.instance()
    for group, options in NAMED_OPTIONS.items():
        for name, option in options.items():
            if users and (users / group / f"{name}.yaml").is_file():
                store.repo.get(group, {}).pop(f"{name}.yaml", None)
            else:
                store.store(
                    group=group,
                    name=name,
                    node={"defaults": [option.schema, "_self_"], **option.values},
                )
