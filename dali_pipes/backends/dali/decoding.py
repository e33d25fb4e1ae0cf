"""How DALI decodes: planned regions only, or whole images that are cropped afterwards.

`choose` decides that. `FAULTS` is a table of known faults of regions on a GPU, each with the
library versions that have it. The versions are read from the libraries that DALI loads, which needs
no GPU. docs/gpu-path.md has the sources.
"""

import ctypes
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from dali_pipes.backends.dali.config import DaliOptions
from dali_pipes.errors import Mention, OptionError
from dali_pipes.plan.transforms import Transform

log = logging.getLogger(__name__)

Version = tuple[int, int, int]

# nvjpeg.h: NVJPEG_BACKEND_HARDWARE, and NVJPEG_STATUS_ARCH_MISMATCH
_ON_ENGINE, _NO_ENGINE = 3, 7


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of the libraries that decode for DALI.

    (0, 0, 0) means unknown, and is treated as a version that has every fault.
    """

    nvimgcodec: Version
    nvjpeg: Version

    def __str__(self) -> str:
        named = {"nvImageCodec": self.nvimgcodec, "nvJPEG": self.nvjpeg}
        return ", ".join(
            f"{name} {'.'.join(map(str, version)) if any(version) else '?'}"
            for name, version in named.items()
        )


# From this version on, and with an nvJPEG below that one, nvImageCodec refuses regions of
# chroma-subsampled JPEGs on the GPU with fancy upsampling (setDecodeParams in its
# extensions/nvjpeg/hw_decoder.cpp; 0.8.0 does not have this check).
GATED_SINCE, GATED_UNTIL_NVJPEG = (0, 9, 0), (13, 2, 0)


class WayOut(NamedTuple):
    """An option that may help if decoding on a GPU goes wrong."""

    option: str
    value: Any
    cost: str = ""  # what else it changes


_WITHOUT_FANCY = WayOut("jpeg_fancy_upsampling", False, ", with other pixels")
_WITHOUT_ENGINE = WayOut("hw_decoder_load", 0)


@dataclass(frozen=True, slots=True)
class RegionFault:
    """Something that goes wrong when regions are decoded on a GPU."""

    what: str  # the fault, with its source
    # whether these versions with these options have it
    applies: Callable[[Versions, DaliOptions], bool]
    way_out: WayOut | None = None  # what avoids it
    is_small: bool = False  # whether a few pixels are wrong, and others in each run


FAULTS = (
    RegionFault(
        "regions fail or end the process (nvImageCodec issue 55)",
        lambda versions, config: versions.nvimgcodec == (0, 9, 0) or not any(versions.nvimgcodec),
    ),
    # Seen on an H100 with nvImageCodec 0.8.0 and nvJPEG 12.4.0, in two 4:2:0 images 500 pixels
    # wide: the last column of the resized crop differed by up to 59 of 255 from one run to the next
    # (docs/gpu-path.md). nvImageCodec 0.9 hands such regions to the CPU.
    RegionFault(
        "the outermost pixel of an image's edge, in regions of chroma-subsampled JPEGs "
        "that touch it, is another one in each run "
        "while jpeg_fancy_upsampling is on and nvJPEG older than 13.2",
        lambda versions, config: (
            config.jpeg_fancy_upsampling
            and versions.nvimgcodec < GATED_SINCE
            and versions.nvjpeg < GATED_UNTIL_NVJPEG
        ),
        _WITHOUT_FANCY,
        is_small=True,
    ),
    RegionFault(
        "regions of chroma-subsampled JPEGs are decoded on the CPU while "
        "jpeg_fancy_upsampling is on and nvJPEG older than 13.2 "
        "(nvImageCodec since 0.9, extensions/nvjpeg)",
        lambda versions, config: (
            config.jpeg_fancy_upsampling
            and versions.nvimgcodec >= GATED_SINCE
            and versions.nvjpeg < GATED_UNTIL_NVJPEG
        ),
        _WITHOUT_FANCY,
    ),
)


@dataclass(frozen=True, slots=True)
class Decoding:
    # decode the planned region only; else the whole image, from which the region is cropped
    region: bool
    why: str  # one line
    # whether a decoder without the JPEG engine makes the same bits of an image each time
    repeats: bool = True

    def __str__(self) -> str:
        return (
            f"{'planned regions only' if self.region else 'whole images, then cropped'}: {self.why}"
        )


def choose(config: DaliOptions, on_gpu: bool) -> Decoding:
    """What `config.decode` means with the installed libraries.

    Raises:
        OptionError: decode is "region" but a fault of the table applies, or it is "force_region"
            and a fault breaks what `exact` promises.
    """
    if not on_gpu:
        return Decoding(config.decode != "whole", "on the CPU both give the same pixels")
    if config.decode == "whole":
        return Decoding(False, "decode=whole")

    versions, faults = installed_versions(), _known(config)
    known = "; ".join(fault.what for fault in faults)

    match config.decode:
        case "force_region":
            repeats = not any(fault.is_small for fault in faults)
            if config.exact and not repeats:
                raise OptionError(
                    type(config),
                    "exact promises the same pixels in each run, but with decode=force_region "
                    f"and {versions} {known}. Leave decode at auto, or turn exact off",
                )
            if faults:
                log.warning("decode=force_region with %s, where %s", versions, known)
            return Decoding(
                True,
                f"decode=force_region, {versions}{f', though {known}' if faults else ''}",
                repeats,
            )
        case "region" if faults:
            owner = type(config)
            ways = [(Mention(owner, way.option, way.value), way.cost) for way in ways_out(config)]
            raise OptionError(
                owner,
                f"decode is region, but with {versions} {known}. Leave it at auto, or set ",
                *ways[0],
                *(part for way in ways[1:] for part in (", or ", *way)),
                "; ",
                Mention(owner, "decode", "force_region"),
                " tries it anyway",
            )

    # the rest: auto, and region without a fault
    if faults:
        return Decoding(False, f"{versions}: {known}")
    return Decoding(True, f"{versions} decode regions on the GPU")


def preallocation(config: DaliOptions, sizes: NDArray[np.int64]) -> tuple[int, int]:
    """Height and width, in pixels, for which the JPEG engine's memory is allocated.

    These are the hints of `config`, or else the 99th percentile, by area, of `sizes`, (N, 2).
    """
    by_area = sizes[np.argsort(sizes.prod(axis=1), kind="stable")]
    height, width = by_area[99 * (len(by_area) - 1) // 100].tolist() if len(by_area) else (1, 1)
    return config.preallocate_height_hint or height, config.preallocate_width_hint or width


def output_dtype(transform: Transform, device: str) -> str:
    """DALI's output dtype on "cpu" or "gpu", named as in `transform.dtype`.

    If the two differ, the batch is cast afterwards. DALI has no bfloat16, and a cast by way of fp16
    would round pixels twice. On the CPU its operator takes 2.7 times as long for fp16 as for fp32.
    """
    return (
        "fp32"
        if transform.dtype == "bf16" or (device == "cpu" and transform.dtype == "fp16")
        else transform.dtype
    )


def ways_out(config: DaliOptions) -> list[WayOut]:
    """Options to try if decoding on a GPU goes wrong with these options."""
    faults = _known(config)
    if config.decode == "whole" or (config.decode == "auto" and faults):
        return [_WITHOUT_ENGINE] if config.engine_load else []

    avoiding = [fault.way_out for fault in faults if fault.way_out]
    return [
        WayOut("decode", "whole"),
        # one that avoids some of the faults only would not help
        *(avoiding if len(avoiding) == len(faults) else []),
        *([_WITHOUT_ENGINE] if config.engine_load and not faults else []),
    ]


def _known(config: DaliOptions) -> list[RegionFault]:
    return [fault for fault in FAULTS if fault.applies(installed_versions(), config)]


@lru_cache
def installed_versions() -> Versions:
    """The versions as the libraries themselves report them."""
    nvimgcodec, cuda = _nvimgcodec()
    return Versions(nvimgcodec, _nvjpeg_version(cuda))


class _Properties(ctypes.Structure):
    """nvimgcodecProperties_t of nvimgcodec.h, whose `struct_type` is 1."""

    _fields_ = (
        ("struct_type", ctypes.c_int),
        ("struct_size", ctypes.c_size_t),
        ("struct_next", ctypes.c_void_p),
        ("version", ctypes.c_uint32),
        ("cudart_version", ctypes.c_uint32),
    )


def _nvimgcodec() -> tuple[Version, int]:
    """The version of nvImageCodec, and the CUDA major version that it was built for.

    DALI loads the libraries of that CUDA version.
    """
    for library in _libraries("nvimgcodec/libnvimgcodec.so*"):
        properties = _Properties(struct_type=1, struct_size=ctypes.sizeof(_Properties))
        if library.nvimgcodecGetProperties(ctypes.byref(properties)) == 0:
            # packed as major, minor and patch in the decimal digits
            version = (
                properties.version // 1000,
                properties.version % 1000 // 100,
                properties.version % 100,
            )
            return version, properties.cudart_version // 1000
    return (0, 0, 0), 0


@lru_cache
def has_jpeg_engine(device_id: int) -> bool:
    """Whether this GPU has a hardware JPEG engine; where that cannot be told, True."""
    if not torch.cuda.is_available():
        return True
    for library in _nvjpeg(_nvimgcodec()[1]):
        handle = ctypes.c_void_p()
        # nvJPEG asks the current device
        with torch.cuda.device(device_id):
            status = library.nvjpegCreateEx(_ON_ENGINE, None, None, 0, ctypes.byref(handle))
        if status == 0:
            library.nvjpegDestroy(handle)
        return bool(status != _NO_ENGINE)
    return True


def _nvjpeg(cuda: int) -> Iterator[ctypes.CDLL]:
    name = f"libnvjpeg.so.{cuda}"
    return _libraries(f"nvjpeg/lib/{name}", f"cu{cuda}/lib/{name}", elsewhere=name)


def _nvjpeg_version(cuda: int) -> Version:
    for library in _nvjpeg(cuda):
        # 0, 1 and 2 ask for major, minor and patch (libraryPropertyType); a status of 0 is success
        numbers = [ctypes.c_int() for _ in range(3)]
        if not any(
            library.nvjpegGetProperty(place, ctypes.byref(number))
            for place, number in enumerate(numbers)
        ):
            major, minor, patch = (number.value for number in numbers)
            return major, minor, patch
    return 0, 0, 0


def _libraries(*patterns: str, elsewhere: str = "") -> Iterator[ctypes.CDLL]:
    """The library from NVIDIA's wheels, or else the system's library of that name.

    NVIDIA's wheels are all in the package `nvidia`.
    """
    spec = find_spec("nvidia")
    folders = map(Path, (spec and spec.submodule_search_locations) or ())
    installed = [
        str(path)
        for folder in folders
        for pattern in patterns
        for path in sorted(folder.glob(pattern))
    ]

    for path in [*installed, elsewhere]:
        try:
            if path:
                yield ctypes.CDLL(path)
        except OSError as error:
            log.debug("%s: %s", path, error)
