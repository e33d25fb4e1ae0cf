"""What the simulated GPU cannot show: that each kernel is there for a real one."""

import importlib.util
from pathlib import Path

import pytest

from .fat_binaries import CUBIN, PTX, Code, read_fat_binaries

# Turing (T4), Ampere (A100, A10), Ada (L4), Hopper (H100), Blackwell (B200, RTX 50)
DEVICES = (75, 80, 86, 89, 90, 100, 120)


def libraries() -> list[Path]:
    """Those with kernels that DALI's graphs run."""
    folders = importlib.util.find_spec("nvidia").submodule_search_locations
    patterns = ("dali/libdali*.so", "nvimgcodec/libnvimgcodec.so*", "nvimgcodec/extensions/*.so*")
    return [file for root in folders for each in patterns for file in Path(root).glob(each)]


@pytest.mark.parametrize("device", DEVICES)
def test_every_fat_binary_has_code_for_the_device(device):
    missing, count = [], 0
    for library in libraries():
        for number, binary in enumerate(read_fat_binaries(library)):
            count += 1
            if not any(code.runs_on(device) for code in binary):
                missing.append((library.name, number, binary))
    assert count > 100 and not missing


def test_what_runs_where():
    assert Code(CUBIN, 80).runs_on(86) and Code(CUBIN, 90).runs_on(90)
    assert not Code(CUBIN, 86).runs_on(80) and not Code(CUBIN, 80).runs_on(90)
    assert Code(PTX, 80).runs_on(90) and not Code(PTX, 120).runs_on(90)


def test_a_library_without_kernels_has_none():
    assert read_fat_binaries(Path(importlib.util.find_spec("_ctypes").origin)) == []
