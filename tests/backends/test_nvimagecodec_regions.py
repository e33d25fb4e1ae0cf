"""The installed nvImageCodec decodes regions by the rule that this package counts on; a version
that nobody has read fails.
"""

import re
from pathlib import Path

import pytest
from nvidia import nvimgcodec

from dali_pipes.backends.dali.decoding import GATED_SINCE, GATED_UNTIL_NVJPEG, installed_versions

READ = {(0, 8, 0), (0, 9, 0)}  # versions whose sources were read for the table of known faults

GATE = re.compile(rb"ROI decode with fancy upsampling[^\0]* with nvJPEG < ([0-9.]+[0-9])")
OPTION = b"enable_roi_fancy_upsampling"


def rule_of(library: bytes) -> str | None:
    """The nvJPEG that the nvJPEG extension asks for, by the warning that it gives."""
    gate = GATE.search(library)
    assert bool(gate) == (OPTION in library), (
        "the gate on regions has another form: read nvImageCodec's sources again"
    )
    return gate[1].decode() if gate else None


def test_regions_are_gated_as_this_package_believes():
    (library,) = (Path(nvimgcodec.__file__).parent / "extensions").glob("libnvjpeg_ext.so.*")
    rule, version = rule_of(library.read_bytes()), installed_versions().nvimgcodec
    assert version in READ, (
        f"nvImageCodec {version} is new here, and its gate on regions with fancy "
        f"upsampling asks for nvJPEG {rule}: read again "
        "where its extensions/nvjpeg/hw_decoder.cpp and cuda_decoder.cpp set "
        "ROI_UNSUPPORTED, then look at decoding.FAULTS"
    )
    major, minor, _ = GATED_UNTIL_NVJPEG
    assert rule == (f"{major}.{minor}" if version >= GATED_SINCE else None)


def test_the_rule_is_read_out_of_the_library():
    message = (
        b"ROI decode with fancy upsampling may be wrong (1 pixel wide) with nvJPEG < 14.0 "
        b"(CTK 14.1). To enable anyway, set it\0"
    )
    assert rule_of(b"\0fancy_upsampling\0") is None
    assert rule_of(b"\0" + message + OPTION + b"\0") == "14.0"
    for half in (message, OPTION):
        with pytest.raises(AssertionError, match="another form"):
            rule_of(half)
