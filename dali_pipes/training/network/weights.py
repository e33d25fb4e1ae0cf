"""The weights that a network starts from, of a file or of a library, instead of random ones.

`find_weights` reads them, and `fit_weights` puts into a network what belongs to it and says what
does not. Files of other programs are understood by what is in them: tensors by name, in a dict of
some name, with a prefix that wrappers have put before each name.
"""

import argparse
import fnmatch
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import Transform
from dali_pipes.training import checkpoint
from dali_pipes.training.checkpoint import CheckpointError
from dali_pipes.training.network.average import averaged_weights
from dali_pipes.training.network.names import is_of_torchvision, timm_name

# Where programs keep the weights in what they save; the first that is there is taken. DINO
# evaluates its teacher (facebookresearch/dino, eval_linear.py, --checkpoint_key).
_HOLDERS = (
    *("state_dict_ema", "model_ema", "teacher", "state_dict", "model", "model_state_dict"),
    *("module", "net", "network", "student"),
)
_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar", ".safetensors")
# parts of a file that its training needed and a classifier does not have
_ASIDE = (
    *("head*", "fc", "classifier", "decoder*", "mask_token", "*predictor*", "*projector*"),
    *("last_layer", "queue*", "*_dist", "dist_token", "pre_logits"),
)
_LEAST = 0.5  # share of a network's weights that a file must have, to be one of this network
_MOST_OTHERS = 0.1  # weights that only the file has, as a share of the network's
_LISTED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Weights that were trained before.

    Attributes:
        source: what messages call them.
        tensors: by the name of their parameter or buffer, on the CPU.
        mean, std: of each channel of the images that they were trained on, of 1; None: unknown.
        classes: the names of their outputs, as the images' classes are named; None: unknown.
    """

    source: str
    tensors: Mapping[str, Tensor]
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    classes: Sequence[str] | None = None


@dataclass(frozen=True, slots=True)
class Fit:
    """What `fit_weights` has done.

    Attributes:
        taken: tensors of the network that were set.
        replaced: tensors of its head that stay random, since the file's are for other classes, or
            are not there.
        missing: other tensors that stay random, since the file lacks them.
        unused: tensors of the file that the network lacks.
        prefix: what the file has before each name.
    """

    taken: int
    replaced: list[str]
    missing: list[str]
    unused: list[str]
    prefix: str

    def sentences(self, weights: Weights) -> list[str]:
        """What is to be said of it, a sentence each."""
        before = f", named {self.prefix}… there" if self.prefix else ""
        said = [f"Starts from {weights.source}: {self.taken} tensors{before}"]
        if self.replaced:
            said.append(f"New and random: the head ({_some(self.replaced)})")
        if self.missing:
            said.append(f"Also random, since the file lacks it: {_some(self.missing)}")
        if self.unused:
            said.append(f"Left out, since the network lacks it: {_some(self.unused)}")
        return said


def find_weights(weights: str, name: str | None) -> Weights:
    """Reads weights.

    Args:
        weights: a file, or a name that torchvision or timm gives to weights of this network.
        name: of the network; None: it is of the user's function, and has no weights by name.

    Raises:
        CheckpointError: there is no such file or name, or it cannot be read without running code
            that is in it.
        ConfigError: a package is missing.
    """
    path = Path(weights).expanduser()
    if path.is_file() or path.suffix in _SUFFIXES or "/" in weights:
        return _of_file(path)
    if name is None:
        raise CheckpointError(
            f"model.weights={weights} is no file, and the network of model.function has no weights "
            "by name; give a file, or load them in the function"
        )

    if is_of_torchvision(name):
        return _of_torchvision(weights, name)
    return _of_timm(weights, timm_name(name))


def _of_file(path: Path) -> Weights:
    if path.suffix == ".safetensors":
        tensors: Any = _safetensors(path)
        return Weights(source=str(path), tensors=tensors)

    # programs save their options with the weights, and a Namespace of numbers and text is harmless
    with torch.serialization.safe_globals([argparse.Namespace]):
        saved = checkpoint.read(path)
    if checkpoint.is_ours(saved, path):
        tensors = averaged_weights(saved["ema"]) if saved["ema"] else saved["model"]
        return replace(read_pixels(saved, path), tensors=tensors, classes=saved["classes"])
    tensors = _tensors_in(saved)
    if not tensors:
        raise CheckpointError(
            f"{path}: no weights in it by name; save model.state_dict() by torch.save"
        )
    return Weights(source=str(path), tensors=tensors)


def _safetensors(path: Path) -> dict[str, Tensor]:
    try:
        from safetensors import SafetensorError
        from safetensors.torch import load_file
    except ImportError:
        raise ConfigError(
            f"model.weights={path} needs the package safetensors; pip install safetensors"
        ) from None
    try:
        return load_file(path)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file") from None
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: not a whole file of safetensors ({error})") from None


def _tensors_in(saved: Any) -> dict[str, Tensor]:
    """The tensors by name of what a program has saved, at any depth of known names."""
    while isinstance(saved, Mapping):
        tensors = {name: each for name, each in saved.items() if isinstance(each, Tensor)}
        inner = next(
            (saved[name] for name in _HOLDERS if isinstance(saved.get(name), Mapping)), None
        )
        if inner is None:
            return {str(name): each for name, each in tensors.items()}
        saved = inner
    return {}


def _of_torchvision(weights: str, name: str) -> Weights:
    from torchvision.models import get_model_weights

    known = get_model_weights(name)
    try:
        entry = known[weights]
    except KeyError:
        names = ", ".join(dict.fromkeys([*known.__members__])) or "none"
        raise CheckpointError(
            f"model.weights={weights} is no file, and torchvision has no such weights of {name}; "
            f"it has {names}"
        ) from None

    form = entry.transforms()
    return Weights(
        source=f"torchvision's {entry}",
        tensors=_from_url(entry.url),
        mean=getattr(form, "mean", None),
        std=getattr(form, "std", None),
    )


def _from_url(url: str) -> dict[str, Tensor]:
    folder = Path(torch.hub.get_dir(), "checkpoints")
    try:
        found: dict[str, Tensor] = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", progress=False, check_hash=True, weights_only=True
        )
    except OSError as error:  # of the network: URLError
        raise CheckpointError(
            f"{url} cannot be fetched ({getattr(error, 'reason', error)}); put the file into "
            f"{folder} by hand"
        ) from None
    except RuntimeError as error:
        raise CheckpointError(f"{url}: {' '.join(str(error).split())}") from None
    return found


def _of_timm(weights: str, name: str) -> Weights:
    import timm

    tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{name}.*")]
    if weights not in tags:
        raise CheckpointError(
            f"model.weights={weights} is no file, and timm has no such weights of {name}; it has "
            f"{', '.join(tags) or 'none'}"
        )
    entry: Any = timm.get_pretrained_cfg(f"{name}.{weights}")
    try:
        network = timm.create_model(
            f"{name}.{weights}", pretrained=True, num_classes=entry.num_classes
        )
    except Exception as error:  # of the network, in any library that fetches it
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"timm's weights {name}.{weights} cannot be fetched ({reason}); where there is a "
            f"network, hf download {entry.hf_hub_id} puts them into the cache below HF_HOME"
        ) from None
    return Weights(
        source=f"timm's {name}.{weights}",
        tensors=network.state_dict(),
        mean=entry.mean,
        std=entry.std,
    )


def fit_weights(module: nn.Module, weights: Weights, head: str, classes: Sequence[str]) -> Fit:
    """Sets the tensors of a network to those of the same name, and leaves its head random where it
    is for other classes.

    Args:
        head: the name of the module that makes the outputs, as from `networks.find_head`.
        classes: the names of the network's outputs.

    Raises:
        CheckpointError: the weights are of another network; nothing has been changed.
    """
    own = module.state_dict()
    prefix = _find_prefix(weights.tensors, own)
    given = {
        name.removeprefix(prefix): each
        for name, each in weights.tensors.items()
        if name.startswith(prefix)
    }

    of_head = {name for name in own if f"{name}.".startswith(f"{head}.")}
    found = {name for name in own if name in given}
    other = {name for name in found if given[name].shape != own[name].shape}
    # as many classes may be other ones
    is_other = weights.classes is not None and [*weights.classes] != [*classes]
    new = other | (of_head if is_other else of_head - found)
    replaced = [name for name in own if name in of_head & new]
    wrong = sorted(other - of_head)
    missing = [name for name in own if name not in found and name not in of_head]
    unused = [name for name in given if name not in own]
    _refuse_other_network(weights, own, of_head, given, wrong, missing, unused)

    taken = {name: given[name] for name in found if name not in replaced}
    module.load_state_dict(taken, strict=False)
    return Fit(len(taken), replaced, missing, unused, prefix)


def _find_prefix(names: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """What a file has before each name of the network, such as "module.backbone."; with several of
    them, as of a student and a teacher, the first one in the file.
    """
    found: Counter[str] = Counter()
    for name in names:
        start = 0
        while start <= len(name):
            if name[start:] in own:
                found[name[:start]] += 1
            at = name.find(".", start)
            if at < 0:
                break
            start = at + 1
    most = max(found.values(), default=0)
    return next((prefix for prefix, count in found.items() if count == most), "")


def _refuse_other_network(
    weights: Weights,
    own: Mapping[str, Tensor],
    of_head: set[str],
    given: Mapping[str, Tensor],
    wrong: list[str],
    missing: list[str],
    unused: list[str],
) -> None:
    if wrong:
        name = wrong[0]
        hint = "; set transform.size to what it was trained with" if "pos_embed" in name else ""
        raise CheckpointError(
            f"{weights.source}: {name} is {_shape(given[name])} there and {_shape(own[name])} in "
            f"the network{_and_more(wrong)}{hint or '; take the network that they are of'}"
        )

    body = _count({name: each for name, each in own.items() if name not in of_head})
    lacking = _count({name: own[name] for name in missing})
    if lacking > (1 - _LEAST) * body:
        raise CheckpointError(
            f"{weights.source}: of another network: it lacks {lacking / max(body, 1):.0%} of this "
            f"one's weights, such as {_some(missing)}; its own are named {_some(list(given))}"
        )

    others = [name for name in unused if not _is_aside(name)]
    if _count({name: given[name] for name in others}) > _MOST_OTHERS * body:
        raise CheckpointError(
            f"{weights.source}: of another network, which also has {_some(others)}; take that "
            "network"
        )


def _is_aside(name: str) -> bool:
    return any(fnmatch.fnmatch(part, each) for part in name.split(".")[:2] for each in _ASIDE)


def read_pixels(saved: Mapping[str, Any], path: Path) -> Weights:
    """Returns what a checkpoint of ours says of the images of its training, and no tensors."""
    kept = saved["options"]
    mean, std = kept["transform.mean"], kept["transform.std"]
    return Weights(source=str(path), tensors={}, mean=mean, std=std)


def describe_pixels(weights: Weights, form: Transform) -> str | None:
    """What is wrong with a transform's normalization for these weights, in one sentence; None:
    nothing, or theirs is unknown.
    """
    for what, theirs, ours in (("mean", weights.mean, form.mean), ("std", weights.std, form.std)):
        if theirs is None or all(
            math.isclose(one, other, abs_tol=1e-3) for one, other in zip(theirs, ours, strict=False)
        ):
            continue
        values = ",".join(f"{each:g}" for each in theirs)
        return (
            f"transform.{what} is [{','.join(f'{each:g}' for each in ours)}], and "
            f"the weights of {weights.source} were trained with [{values}]; "
            f"set transform.{what}=[{values}]"
        )
    return None


def _count(tensors: Mapping[str, Tensor]) -> int:
    return sum(each.numel() for each in tensors.values() if each.is_floating_point())


def _shape(tensor: Tensor) -> str:
    return " × ".join(map(str, tensor.shape)) or "a number"


def _some(names: Sequence[str]) -> str:
    return f"{', '.join(names[:_LISTED])}{_and_more(names, _LISTED)}"


def _and_more(names: Sequence[str], listed: int = 1) -> str:
    return f" and {len(names) - listed:,} more" if len(names) > listed else ""
