"""Networks in folders that Hugging Face's transformers saved."""

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from dali_pipes.errors import ConfigError
from dali_pipes.training.network.names import propose_option

OF_FOLDER = ("num_labels", "num_channels")  # what the program gives to a network of a folder
_NAMES_CODE = (
    "model.name={}: its config.json names code, which is not run; make the network in a function "
    "of yours, and name that: model.function=my_models:make"
)


def check_folder(name: str) -> None:
    """Raises a ConfigError if there is no model in a folder, or transformers is missing."""
    if not Path(name, "config.json").is_file():
        raise ConfigError(
            f"model.name={name} is no folder of a model of Hugging Face: there is no config.json "
            "in it; save one by save_pretrained(), or name a network of torchvision or timm"
        )
    if not find_spec("transformers"):
        raise ConfigError(
            f"model.name={name} is a folder of Hugging Face's, which needs the package "
            "transformers; pip install transformers"
        )


class Logits(nn.Module):
    """A model of Hugging Face as a network: images in, scores (N, classes) out.

    Args:
        classes: what its folder calls the classes that it was trained for; empty: unknown.
    """

    def __init__(self, network: nn.Module, classes: list[str]):
        super().__init__()
        self.network, self.classes = network, classes

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network(pixel_values=images).logits
        return scores


def load_folder(
    name: str, num_classes: int, channels: int, options: Mapping[str, Any]
) -> nn.Module:
    """The network of a folder with its weights; its head is new where it is for other classes."""
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers.utils.logging import get_verbosity, set_verbosity

    # without it transformers asks on the terminal whether to run the code that `auto_map` names
    trusted = {"local_files_only": True, "trust_remote_code": False}
    try:
        own = AutoConfig.from_pretrained(name, **trusted)
    except Exception as error:  # of any kind: the folder may hold anything
        raise _refusal(name, error) from None
    # the attention may be a kernel on Hugging Face's hub, which transformers fetches and imports
    if "/" in str(getattr(own, "_attn_implementation", None)):
        raise ConfigError(_NAMES_CODE.format(name))
    if (stored := getattr(own, "num_channels", channels)) != channels:
        raise ConfigError(
            f"model.name={name} takes images of {stored} channels, and transform.channels is "
            f"{channels}; set transform.channels={stored}"
        )
    entries = own.to_dict()
    if unknown := [option for option in options if option not in entries]:
        raise ConfigError(
            f"model.options: the config.json of model.name={name} has no {unknown[0]}"
            f"{propose_option(unknown[0], {*entries, *OF_FOLDER}, OF_FOLDER)}"
        )

    level = get_verbosity()
    set_verbosity(logging.ERROR)  # it warns of the new head
    try:
        network = AutoModelForImageClassification.from_pretrained(
            name,
            num_labels=num_classes,
            ignore_mismatched_sizes=True,
            **trusted,
            **options,
        )
    except Exception as error:
        raise _refusal(name, error) from None
    finally:
        set_verbosity(level)
    classes = [own.id2label[place] for place in sorted(own.id2label)]
    # its names where nobody has given any
    named = classes != [f"LABEL_{place}" for place in range(len(classes))]
    return Logits(network, classes if named else [])


def _refusal(name: str, error: Exception) -> ConfigError:
    # what transformers proposes, trust_remote_code=True, would run the code
    if "trust_remote_code" in str(error):
        return ConfigError(_NAMES_CODE.format(name))
    reason = " ".join(str(error).split())[:200]
    return ConfigError(f"model.name={name}: transformers cannot make a classifier of it ({reason})")


def stored_classes(network: nn.Module) -> list[str]:
    """Returns the classes that a folder of Hugging Face names; those of other networks are not
    known.
    """
    return network.classes if isinstance(network, Logits) else []
