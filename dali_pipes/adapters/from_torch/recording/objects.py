"""What an object of the user's program holds: its attributes, its slots, and whether it is one of
the program's own.
"""

import argparse
import functools
import sys
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from contextlib import suppress
from types import (
    CellType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    NoneType,
    SimpleNamespace,
)
from typing import Any

import numpy as np
import torch

CONTAINERS = (dict, list, set, bytearray, deque, OrderedDict, defaultdict)
# values that hold nothing
ATOMS = (str, bytes, int, float, complex, NoneType, np.generic)
# whose attributes are all of the program's own
_NAMESPACES = (SimpleNamespace, argparse.Namespace, threading.local)
# packages whose objects hold generators and pictures: transforms, caches, stages of a pipeline
_WALKED = ("torchvision", "timm", "albumentations", "cachetools", "webdataset")
# packages of dicts whose keys are attributes, and of configurations
_OPTIONS = ("easydict", "munch", "addict", "attrdict", "box", "omegaconf", "ml_collections")
_FUNCTIONS = (FunctionType, MethodType, functools.partial)
_NOT_OWN = {*sys.stdlib_module_names, "dali_pipes"}
SHORT = 64  # a longer list or dict holds paths or labels, and no objects
LARGEST_ARRAY = 64 << 20  # bytes of an array that is copied
# no object of these packages is copied: they are large, or know who uses them
_LIBRARIES = {
    *("torch", "torchvision", "timm", "albumentations", "numpy", "pandas", "PIL", "cv2"),
    *("pyarrow", "datasets", "lmdb", "h5py", "scipy", "builtins", "collections", "io", "pathlib"),
    *("threading", "logging", "random", "functools", "types"),
}


def is_a(value: Any, kinds: Any) -> bool:
    """The same as `isinstance`, which asks the object itself: a proxy may fail whatever it is
    asked, and one whose object is gone does.
    """
    return issubclass(type(value), kinds)


def attributes_of(value: Any) -> dict[str, Any] | None:
    """The dict of an object's attributes; None: it has none."""
    with suppress(Exception):
        space = value.__dict__
        return space if is_a(space, dict) else None
    return None


def slot_members(value: Any) -> dict[str, Any]:
    """What reads and sets the slots that classes of the user's program give an object."""
    kind: Any = type(value)
    return _slots_in(kind)


@functools.lru_cache(4096)
def _slots_in(kind: type) -> dict[str, Any]:
    return {
        name: member
        for each in kind.__mro__
        if is_own(sys.modules.get(each.__module__))
        for name, member in vars(each).items()
        if type(member) is MemberDescriptorType
    }


def slots_of(value: Any) -> dict[str, Any]:
    """What an object of the user's program has in its slots."""
    held = {}
    for name, member in slot_members(value).items():
        with suppress(AttributeError):  # it has no value yet
            held[name] = member.__get__(value)
    return held


def referent(value: Any) -> Any:
    """The object of a weak reference; None: it is none, or the object is gone."""
    if type(value) is weakref.ReferenceType:
        return value()
    if type(value) in weakref.ProxyTypes:
        return getattr(value.__setattr__, "__self__", None)
    return None


def is_array(value: Any) -> bool:
    return is_a(value, np.ndarray) or type(value) is torch.Tensor


def is_copied(value: Any) -> bool:
    """Whether an object is one of the user's own that may keep something in its attributes."""
    if attributes_of(value) is None or is_a(value, _FUNCTIONS):
        return False
    if is_a(value, torch.utils.data.Dataset):
        return True
    # A program may have a package of its own with a library's name, such as `datasets`. An open
    # ZipFile of Python's own library must not be copied: its copy would close the file.
    name = type(value).__module__
    module = name.partition(".")[0]
    is_library = module in _LIBRARIES or module in sys.stdlib_module_names
    return not is_library or is_own(sys.modules.get(name))


def is_installed(name: str) -> bool:
    """Whether a module is of the standard library, or of a package that is installed."""
    if name.partition(".")[0] in _NOT_OWN:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" in file or "dist-packages" in file


def is_own(module: Any) -> bool:
    """Whether a module is one of the user's program."""
    name = getattr(module, "__name__", "")
    if name == "__main__":
        return True
    file = getattr(module, "__file__", None)
    if not isinstance(name, str) or not isinstance(file, str):
        return False
    is_library = name.partition(".")[0] in _NOT_OWN
    return not (is_library or "site-packages" in file or "dist-packages" in file)


def is_walked(value: Any) -> bool:
    """Whether an object is one of the user's classes, a namespace, a transform or a data set, or
    part of one.
    """
    if is_a(value, (type, ModuleType)):
        return False
    name = type(value).__module__
    is_known = name.partition(".")[0] in _WALKED
    kinds = torch.utils.data.Dataset, torch.nn.Module
    return (
        is_known
        or is_namespace(value)
        or is_a(value, kinds)
        or (isinstance(name, str) and is_own(sys.modules.get(name)))
    )


def is_namespace(value: Any) -> bool:
    """Whether an object's attributes are all of the program's own."""
    return type(value) in _NAMESPACES or _package_of(value) in _OPTIONS


def _package_of(value: Any) -> str:
    return str(type(value).__module__).partition(".")[0]


def content(cell: CellType) -> Any:
    """The value of a variable of a closure; the cell itself if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell
