"""Patches each library with a CUDA runtime when Python imports the module that brings it."""

import ctypes
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from simulated_gpu.patching import Patcher

Action = Callable[[], None]


def install(built: Path) -> None:
    """From now on `libcuda.so.1` and NVML are the simulated ones, and so is the runtime of all that
    is imported.
    """
    device = ctypes.CDLL(str(built / "libcuda.so.1"))
    if failure(device, b"nvml") != NO_NVML:
        ctypes.CDLL(str(built / "libnvidia-ml.so.1"))
    patcher = Patcher(device, built)

    def load(*patterns: str) -> Action:
        return lambda: patcher.load_and_patch(patterns)

    before = {
        "torch": load("nvidia/cuda_runtime/lib/libcudart.so.*", "nvidia/cu*/lib/libcudart.so.*"),
        "torchvision": load("torchvision.libs/libcudart.*", "torchvision.libs/libnvjpeg.*"),
    }
    nvimgcodec = load(
        "nvidia/nvimgcodec/libnvimgcodec.so*",
        "nvidia/nvimgcodec/extensions/libnv*_ext.so*",
        # which dali_pipes asks whether there is a JPEG engine
        "nvidia/nvjpeg/lib/libnvjpeg.so.*",
        "nvidia/cu*/lib/libnvjpeg.so.*",
    )
    after = {
        "torch": use_cpu_kernels,
        "nvidia.dali.backend_impl": [nvimgcodec, patcher.patch_loaded],
        "nvidia.nvimgcodec.nvimgcodec_impl": [nvimgcodec, patcher.patch_loaded],
        "cupy_backends.cuda.api.runtime": patcher.patch_loaded,
    }
    sys.meta_path.insert(0, _Finder(before, after))


NO_NVML = 9  # the error "driver not loaded": then there is no library either


def failure(device: ctypes.CDLL, name: bytes) -> int:
    """A number of the variable SIMULATED_GPU_FAIL; 0 if it is not there."""
    device.failure.restype = ctypes.c_long
    return int(device.failure(name, ctypes.c_long(0)))


def use_cpu_kernels() -> None:
    """PyTorch's operators on the simulated GPU."""
    from simulated_gpu import torch_kernels

    torch_kernels.install()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself, but does something before and after some modules are executed."""

    def __init__(self, before: dict[str, Action], after: dict[str, Action | list[Action]]):
        self._before, self._after, self._busy = before, after, set()

    def find_spec(self, name, path, target=None):
        if name in self._busy or (name not in self._before and name not in self._after):
            return None
        self._busy.add(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        if name in self._before:
            self._before[name]()
        actions = self._after.get(name, [])
        spec.loader = _Loader(spec.loader, actions if isinstance(actions, list) else [actions])
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, loader: importlib.abc.Loader, actions: list[Action]):
        self._loader, self._actions = loader, actions

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for act in self._actions:
            act()

    def __getattr__(self, name):
        return getattr(self._loader, name)
