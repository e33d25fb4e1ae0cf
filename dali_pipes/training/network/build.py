"""The network: by its name in torchvision or timm, of a folder of Hugging Face, or of a function of
the user's; what it takes, and its head.
"""

import inspect
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from dali_pipes.errors import ConfigError
from dali_pipes.system.functions import import_function
from dali_pipes.training.config import ModelConfig
from dali_pipes.training.network.hugging_face import OF_FOLDER, check_folder, load_folder
from dali_pipes.training.network.names import (
    FROM_TIMM,
    SET_HERE,
    is_folder,
    is_of_torchvision,
    propose_option,
    timm_name,
    torchvision_names,
)

# In training these two have auxiliary outputs with losses (Szegedy et al., 2014 and 2015); only the
# main output is trained here.
_ONE_OUTPUT = {
    name: {"aux_logits": False, "init_weights": True} for name in ("googlenet", "inception_v3")
}
_OF_SETTING = ("width_mult", "reduced_tail", "dilated")
_GIVEN = ("num_classes", "channels")  # to a function that takes them
_NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})
# what sets the size of images for torchvision's networks that take one only, by the start of their
# names
_SIZES = {"vit_": "image_size", "maxvit_": "input_size"}


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
    if is_folder(name):
        check_folder(name)
        return name

    names, where = torchvision_names(), "torchvision.models does"
    if name in names:
        return name
    if find_spec("timm"):
        import timm

        if timm_name(name) in timm.list_models():
            return name
        where = "torchvision.models and timm do"
    elif name.startswith(FROM_TIMM):
        raise ConfigError(f"model.name={name} needs the package timm; pip install timm")

    near = get_close_matches(name, names, n=5, cutoff=0.3)
    raise ConfigError(
        f"model.name is {name!r}, which {where} not have; near names: {', '.join(near) or 'none'}"
    )


def check_size(name: str, size: object, options: Mapping[str, Any] = _NO_OPTIONS) -> None:
    """Checks that a network takes images of a `Transform.size`; some transformers have a grid of
    one size, which is that of `ModelConfig.options` if they name one.

    Raises:
        ConfigError: this one takes images of another size only.
    """
    if is_folder(name):
        return
    option, own = _fixed_size(name, options)
    takes = _pair(options.get(option, own)) if option else None
    if takes is None or takes == _pair(size):
        return

    height, width = takes
    text = f"{height}" if height == width else f"{height} × {width}"
    value = f"{height}" if height == width else f"[{height},{width}]"
    raise ConfigError(
        f"model.name={name} takes images of {text} pixels only; set transform.size={value}, build "
        f"it for others with model.options={{{option}: …}}, or choose another network"
    )


def _fixed_size(name: str, options: Mapping[str, Any]) -> tuple[str, object]:
    """The argument that sets the only size that a network takes, and that size without it; "" and
    None for one that takes several.
    """
    if name in torchvision_names():
        option = next((_SIZES[each] for each in _SIZES if name.startswith(each)), "")
        return option, 224 if option else None

    import timm

    default = timm.get_pretrained_cfg(timm_name(name))
    # arguments of timm's transformers by which they take other sizes as well
    is_free = options.get("dynamic_img_size") or not options.get("strict_img_size", True)
    if default is None or not default.fixed_input_size or is_free:
        return "", None
    return "img_size", default.input_size[1:]


def _pair(size: object) -> tuple[Any, ...]:
    return tuple(size) if isinstance(size, list | tuple) else (size, size)


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
    if is_folder(name):
        _refuse_own(OF_FOLDER, options)
        return load_folder(name, num_classes, channels, options)
    check_channels(name, channels)
    if is_of_torchvision(name):
        from torchvision.models import get_model

        own = {"weights": None, "num_classes": num_classes, **_ONE_OUTPUT.get(name, {})}
        network = _build(partial(get_model, name), own, options)
        _refuse_ignored(network, own, options)
        return network
    import timm

    own = {"pretrained": False, "num_classes": num_classes, "in_chans": channels}
    if "checkpoint_path" in options:  # timm reads that file in its own way
        raise ConfigError(
            "model.options: checkpoint_path is not taken; set model.weights=FILE, which runs no "
            "code that is in it"
        )
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
        raise ConfigError(f"model.options: {given[0]} {SET_HERE}")


def _refuse_ignored(network: nn.Module, own: Collection[str], options: Mapping[str, Any]) -> None:
    # torchvision's ConvNeXt and MobileNetV3 ignore arguments that they do not know
    _, *taken = inspect.signature(type(network).__init__).parameters.values()  # after self
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken):
        return
    named = {each.name for each in taken if each.kind is not inspect.Parameter.VAR_KEYWORD}
    # these go to the function that makes the setting of a MobileNetV3
    known = {*named, *(_OF_SETTING if "inverted_residual_setting" in named else ())}
    if unknown := [option for option in options if option not in known]:
        raise ConfigError(
            f"model.options: torchvision's {type(network).__name__} takes no {unknown[0]}"
            f"{propose_option(unknown[0], known, own)}"
        )


def _refusal(options: Mapping[str, Any], error: Exception) -> str:
    text = ", ".join(f"{name}: {value}" for name, value in options.items())
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    return f"model.options={{{text}}}: the network cannot be built with it ({reason})"


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
            f"{propose_option(unknown[0], taken, given)}"
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
            check_size(name, size, config.options)
        check_channels(name, channels)
    if config.compile:
        check_compiler()


def refuse_training_options(config: ModelConfig, but: Collection[str] = ()) -> None:
    """Refuses options of the network that only `dali-pipes train` carries out.

    Args:
        but: options that are carried out.

    Raises:
        ConfigError: one is given.
    """
    given = {
        "function": config.function,
        "options": config.options,
        "weights": config.weights,
        "freeze": config.freeze,
    }
    if left := [name for name, value in given.items() if value and name not in but]:
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
