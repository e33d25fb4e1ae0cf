"""For which GPUs the kernels in a library are compiled.

The simulated GPU runs no kernel of DALI's, so it would not notice one that is missing for a real
device. A library says what it holds: nvcc puts the machine code for each architecture, and PTX for
later ones, into "fat binaries" in the section .nv_fatbin. Their layout is as NVIDIA's cuobjdump
shows it; the fields used here are the same in all versions since CUDA 8.
"""

import mmap
import struct
from pathlib import Path
from typing import NamedTuple

from elftools.elf.elffile import ELFFile

MAGIC = 0xBA55ED50
PTX, CUBIN = 1, 2


class Code(NamedTuple):
    """One entry of a fat binary: PTX or machine code of an architecture, such as 90 for 9.0."""

    kind: int
    architecture: int

    def runs_on(self, architecture: int) -> bool:
        """PTX serves all later architectures; machine code serves those of its major version."""
        if self.kind == PTX:
            return self.architecture <= architecture
        return self.architecture // 10 == architecture // 10 and self.architecture <= architecture


def read_fat_binaries(library: Path) -> list[list[Code]]:
    """What each fat binary of a library holds; none for a library without kernels."""
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".nv_fatbin")
        if section is None:
            return []
        start, end = section["sh_offset"], section["sh_offset"] + section["sh_size"]
        content = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    binaries = []
    while start < end:
        magic, _, header_size, size = struct.unpack_from("<IHHQ", content, start)
        if magic != MAGIC:  # padding between two of them
            start += 8
            continue
        binaries.append(_entries(content, start + header_size, start + header_size + size))
        start += header_size + size
    return binaries


def _entries(content: mmap.mmap, start: int, end: int) -> list[Code]:
    entries = []
    while start < end:
        kind, _, header_size, size = struct.unpack_from("<HHIQ", content, start)
        (architecture,) = struct.unpack_from("<I", content, start + 28)
        entries.append(Code(kind, architecture))
        start += header_size + size
    return entries
