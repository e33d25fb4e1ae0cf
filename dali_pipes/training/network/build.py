"""The network: by its name in torchvision or timm, of a folder of Hugging Face, or of a function of
the user's; its head, and what of it is not trained.
"""

import inspect
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatch
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from dali_pipes.errors import ConfigError
from dali_pipes.options import propose_name
from dali_pipes.system.functions import import_function
from dali_pipes.training.config import ModelConfig

# In training these two have auxiliary outputs with losses (Szegedy et al., 2014 and 2015); only the
# main output is trained here.
_ONE_OUTPUT = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}
_FROM_TIMM = "timm/"  # before the name of a network that torchvision has too
_OF_SETTING = ("width_mult", "reduced_tail", "dilated")
_GIVEN = ("num_classes", "channels")  # to a function that takes them
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
_ONE_SIZE = ("vit_", "maxvit_")  # beginnings of torchvision's names


def check_model(name: str | None) -> str:
    """Returns the name, if torchvision or timm has such a model for classification, or if it is a
    folder of Hugging Face's transformers.

    Raises:
        ConfigError: neither has one; the text names the nearest ones. Or the folder is none.
    """
    if name is None:
        raise ConfigError(
            "no model is named; choose one, as in model=resnet50 or model.name=vit_b_16"
        )
    if _is_folder(name):
        _check_folder(name)
        return name

    names, where = torchvision_names(), "torchvision.models does"
    if name in names:
        return name
    if find_spec("timm"):
        import timm

        if timm_name(name) in timm.list_models():
            return name
        where = "torchvision.models and timm do"
    elif name.startswith(_FROM_TIMM):
        raise ConfigError(f"model.name={name} needs the package timm; pip install timm")

    near = get_close_matches(name, names, n=5, cutoff=0.3)
    raise ConfigError(
        f"model.name is {name!r}, which {where} not have; near names: {', '.join(near) or 'none'}"
    )


def check_size(name: str, size: object) -> None:
    """Checks that a network takes images of a `Transform.size`; some transformers of torchvision
    have a grid of one size.

    Raises:
        ConfigError: this one takes images of 224 pixels only.
    """
    if name in torchvision_names() and name.startswith(_ONE_SIZE) and size != 224:
        raise ConfigError(
            f"model.name={name} takes images of 224 pixels only; set transform.size=224, or "
            "choose another network"
        )


def check_channels(name: str, channels: int) -> None:
    """Checks that a network can be built for images of this many channels.

    Raises:
        ConfigError: torchvision builds its networks for three only.
    """
    if channels != 3 and name in torchvision_names():
        raise ConfigError(
            f"model.name={name} is torchvision's, for images of three channels, and "
            f"transform.channels is {channels}; choose a network that only timm has, such as "
            "resnet26d, or set transform.channels=3"
        )


def check_compiler() -> None:
    """Checks that torch.compile finds a compiler, which torch._inductor needs on a CPU and Triton
    on a GPU.

    Raises:
        ConfigError: there is none, as in the container's image.
    """
    if not any(
        shutil.which(name)
        for name in (os.environ.get("CC", "gcc"), os.environ.get("CXX", "g++"), "clang")
    ):
        raise ConfigError(
            "model.compile=true needs a C++ compiler, and there is none; set "
            "model.compile=false, or install g++"
        )


def build_model(
    name: str | None,
    num_classes: int = 1000,
    channels: int = 3,
    options: Mapping[str, Any] = _NO_OPTIONS,
) -> nn.Module:
    """Builds a network with random weights and `num_classes` outputs, for images of `channels`;
    torchvision's if timm has one of that name too. A folder of Hugging Face has its own weights.

    Args:
        options: `ModelConfig.options`.

    Raises:
        ConfigError: there is no such network, or it does not take the options.
    """
    name = check_model(name)
    if _is_folder(name):
        return _of_folder(name, num_classes, channels, options)
    check_channels(name, channels)
    if is_of_torchvision(name):
        from torchvision.models import get_model

        own = {"weights": None, "num_classes": num_classes, **_ONE_OUTPUT.get(name, {})}
        network = _build(partial(get_model, name), own, options)
        _refuse_ignored(network, options)
        return network
    import timm

    own = {"pretrained": False, "num_classes": num_classes, "in_chans": channels}
    return _build(partial(timm.create_model, timm_name(name)), own, options)


def _build(make: Callable[..., Any], own: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """Calls a library's function with our arguments and the user's."""
    _refuse_own(own, options)
    if not options:
        return make(**own)
    try:
        return make(**own, **options)
    except Exception as error:  # of any kind: the arguments may be anything
        raise ConfigError(_refusal(options, error)) from None


def _refuse_own(own: Iterable[str], options: Mapping[str, Any]) -> None:
    if given := [name for name in own if name in options]:
        raise ConfigError(
            f"model.options: {given[0]} is set by this program, from the labels, the transform and "
            "the other options of model; leave it out"
        )


def _refuse_ignored(network: nn.Module, options: Mapping[str, Any]) -> None:
    # torchvision's ConvNeXt and MobileNetV3 ignore arguments that they do not know
    taken = inspect.signature(type(network).__init__).parameters
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values()):
        return
    # these go to the function that makes the setting of a MobileNetV3
    known = {*taken, *(_OF_SETTING if "inverted_residual_setting" in taken else ())}
    if unknown := [option for option in options if option not in known]:
        raise ConfigError(
            f"model.options: torchvision's {type(network).__name__} takes no {unknown[0]}"
            f"{propose_name(unknown[0], known)}"
        )


def _refusal(options: Mapping[str, Any], error: Exception) -> str:
    text = ", ".join(f"{name}: {value}" for name, value in options.items())
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return f"model.options={{{text}}}: the network cannot be built with it ({reason})"


def timm_name(name: str) -> str:
    """What timm calls a network of `ModelConfig.name`."""
    return name.removeprefix(_FROM_TIMM)


def is_of_torchvision(name: str) -> bool:
    """Whether a network is built by torchvision, which goes before timm."""
    return name in torchvision_names()


def torchvision_names() -> list[str]:
    """The names of torchvision's networks for classification."""
    from torchvision import models  # here, since it takes longer to import than PyTorch

    return models.list_models(models)


def _is_folder(name: str) -> bool:
    return ("/" in name and not name.startswith(_FROM_TIMM)) or Path(name).is_dir()


def _check_folder(name: str) -> None:
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


def _of_folder(name: str, num_classes: int, channels: int, options: Mapping[str, Any]) -> nn.Module:
    """The network of a folder with its weights; its head is new where it is for other classes."""
    from transformers import AutoConfig, AutoModelForImageClassification
    from transformers.utils.logging import get_verbosity, set_verbosity

    own = AutoConfig.from_pretrained(name, local_files_only=True)
    if (stored := getattr(own, "num_channels", channels)) != channels:
        raise ConfigError(
            f"model.name={name} takes images of {stored} channels, and transform.channels is "
            f"{channels}; set transform.channels={stored}"
        )
    _refuse_own(("num_labels", "num_channels"), options)
    entries = own.to_dict()
    if unknown := [option for option in options if option not in entries]:
        raise ConfigError(
            f"model.options: the config.json of model.name={name} has no {unknown[0]}"
            f"{propose_name(unknown[0], entries)}"
        )

    level = get_verbosity()
    set_verbosity(logging.ERROR)  # it warns of the new head
    try:
        network = AutoModelForImageClassification.from_pretrained(
            name,
            num_labels=num_classes,
            ignore_mismatched_sizes=True,
            local_files_only=True,
            **options,
        )
    except Exception as error:  # of any kind: the folder may hold anything
        raise ConfigError(
            f"model.name={name}: transformers cannot make a classifier of it "
            f"({' '.join(str(error).split())[:200]})"
        ) from None
    finally:
        set_verbosity(level)
    classes = [own.id2label[place] for place in sorted(own.id2label)]
    # its names where nobody has given any
    named = classes != [f"LABEL_{place}" for place in range(len(classes))]
    return Logits(network, classes if named else [])


def stored_classes(network: nn.Module) -> list[str]:
    """Returns the classes that a folder of Hugging Face names; those of other networks are not
    known.
    """
    return network.classes if isinstance(network, Logits) else []


def _of_function(
    function: str, num_classes: int, channels: int, options: Mapping[str, Any]
) -> nn.Module:
    """The network that a function makes; it gets the number of classes and of channels if it takes
    `num_classes` and `channels`, and the options.
    """
    given = dict(zip(_GIVEN, (num_classes, channels), strict=True))
    make = import_function(function, optional=(*given, *options))
    taken = inspect.signature(make).parameters
    every = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
    _refuse_own(given, options)
    if unknown := [option for option in options if not every and option not in taken]:
        raise ConfigError(
            f"model.options: model.function={function} takes no {unknown[0]}"
            f"{propose_name(unknown[0], taken)}"
        )

    passed = {name: value for name, value in given.items() if every or name in taken}
    network = make(**passed, **options)
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"model.function={function} returns {type(network).__name__}; it must return the "
            "network, an nn.Module"
        )
    if any(isinstance(each, UninitializedParameter) for each in network.parameters()):
        raise ConfigError(
            f"model.function={function} returns a network whose lazy layers have no weights yet; "
            "let it call the network once with a batch of zeros"
        )
    return network


def check_network(config: ModelConfig, sizes: Sequence[object], channels: int) -> None:
    """Checks that the configured network can be built and compiled, for images of these sizes.

    Raises:
        ConfigError: it cannot.
    """
    if config.function:
        import_function(config.function, optional=(*_GIVEN, *config.options))
    else:
        name = check_model(config.name)
        for size in sizes:
            check_size(name, size)
        check_channels(name, channels)
    if config.compile:
        check_compiler()


def refuse_training_options(config: ModelConfig, but: str = "") -> None:
    """Refuses options of the network that only `dali-pipes train` carries out.

    Args:
        but: an option that is carried out.

    Raises:
        ConfigError: one is given.
    """
    given = {
        "function": config.function,
        "options": config.options,
        "weights": config.weights,
        "freeze": config.freeze,
    }
    if left := [name for name, value in given.items() if value and name != but]:
        raise ConfigError(
            f"model.{left[0]} is for dali-pipes train; leave it out, or measure a program of your "
            "own with it: function=my_train:make"
        )


def title_of(config: ModelConfig) -> str | None:
    """What messages and checkpoints call the network."""
    return config.function or config.name


def find_head(module: nn.Module, outputs: int) -> str:
    """The name of the part that makes the outputs: the last layer that has so many; "": none is
    found.
    """
    last = ""
    for name, each in module.named_modules():
        weight = getattr(each, "weight", None)
        if isinstance(each, nn.Linear | nn.Conv2d) and weight is not None:
            last = name if len(weight) == outputs else last
    return last


def freeze(module: nn.Module, patterns: Sequence[str], head: str) -> float:
    """Leaves parameters out of the training, and returns the share of the weights that is trained.

    A part of which nothing is trained stays in evaluation mode, so that its running statistics stay
    what they are, and it drops nothing out.

    Args:
        patterns: of parameters' names, such as layer1.*; backbone.* is everything but the head
            where no name begins with that word.
        head: as from `find_head`.

    Raises:
        ConfigError: a pattern is of no parameter, or nothing would be trained.
    """
    named = dict(module.named_parameters())
    for pattern in patterns:
        matched = [name for name in named if fnmatch(name, pattern)]
        if not matched and pattern in ("backbone", "backbone.*") and head:
            matched = [name for name in named if not name.startswith(f"{head}.")]
        if not matched:
            parts = ", ".join(f"{each}.*" for each, _ in module.named_children())
            raise ConfigError(
                f"model.freeze={pattern} is of no parameter of the network; its parts are {parts}"
            )
        for name in matched:
            named[name].requires_grad_(False)

    trained = sum(each.numel() for each in named.values() if each.requires_grad)
    if not trained:
        raise ConfigError(
            f"model.freeze=[{','.join(patterns)}] leaves nothing to train; leave a part out of it, "
            "such as backbone.* for all but the head"
        )
    if patterns:
        _keep_in_evaluation(module)
    return trained / sum(each.numel() for each in named.values())


def _keep_in_evaluation(module: nn.Module) -> None:
    parameters = list(module.parameters())
    if parameters and not any(each.requires_grad for each in parameters):
        # a method of the object, so that a copy of it has one of its own
        module.train = MethodType(_train_nothing, module)  # type: ignore[method-assign]
        module.eval()
        return
    for child in module.children():
        _keep_in_evaluation(child)


def _train_nothing(module: nn.Module, mode: bool = True) -> nn.Module:
    for each in module.children():
        each.train(False)
    module.training = False
    return module


def default_model() -> str:
    """Returns the name of the network that measurements train."""
    return "resnet50" if torch.cuda.is_available() else "shufflenet_v2_x0_5"


def build_network(config: ModelConfig, num_classes: int, channels: int = 3) -> nn.Module:
    """Builds the configured network for images of `channels`, with random weights drawn on the CPU
    (those of a folder of Hugging Face are the folder's).

    Raises:
        ConfigError: there is no such network, it does not take the options, or it is for other
            images.
    """
    module = (
        _of_function(config.function, num_classes, channels, config.options)
        if config.function
        else build_model(config.name, num_classes, channels, config.options)
    )
    memory: Any = {"memory_format": torch.channels_last} if config.channels_last else {}
    return module.to(**memory) if memory else module
