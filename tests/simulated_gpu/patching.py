"""Overwrites the functions of the CUDA runtime and of nvJPEG, in memory, with jumps to the
simulated ones.

DALI, nvImageCodec and CuPy have the runtime linked in statically, and call it directly: no dynamic
linker ever sees those calls. Their libraries still name it in their table of symbols.
"""

import ctypes
import json
import mmap
import re
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

SIMULATED = re.compile(
    r"(cuda[A-Z]|__cuda(Push|Pop|Launch|GetKernel|InitModule)|nvjpeg[A-Z]|nvjpeg2k[A-Z]|nvtiff[A-Z])\w*"
)
# nvImageCodec makes their decoders at its start; no test has such images
OTHER_CODECS = re.compile(r"nvjpeg2k|nvtiff")
# They need no GPU, and say which version is installed.
REAL = {
    "nvjpegGetProperty",
    "nvjpegGetCudartProperty",
    "nvjpeg2kGetProperty",
    "nvjpeg2kGetCudartProperty",
    "nvtiffGetProperty",
    "nvtiffGetCudartProperty",
    "cudaRuntimeGetVersion",
}
OURS = re.compile(
    r"/(nvidia/(dali|nvimgcodec)|cupy_backends|torchvision\.libs|nvidia/(cuda_runtime|nvjpeg|cu\d+)/lib/lib(cudart|nvjpeg))"
)
JUMP = b"\xff\x25\x00\x00\x00\x00"  # jmp [rip]; the address follows
PAGE = mmap.PAGESIZE


class Patcher:
    """Args:
    device: the simulated device's library, with a `sim_NAME` for each NAME that is simulated.
    cache: a folder, for what was read out of the libraries.
    """

    def __init__(self, device: ctypes.CDLL, cache: Path):
        self._device, self._cache = device, cache
        self._patched: set[str] = set()
        self._thunks: dict[str, int] = {}
        self._room = mmap.mmap(
            -1, 256 * PAGE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        )
        self._room_at = ctypes.addressof(ctypes.c_char.from_buffer(self._room))
        self._room_used = 0
        self._protect = ctypes.CDLL(None, use_errno=True).mprotect
        self._protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

    def load_and_patch(self, patterns: Iterable[str]) -> None:
        """Of the installed packages, whichever of these files there are."""
        for pattern in patterns:
            for root in map(Path, sys.path):
                for path in sorted(root.glob(pattern)) if root.is_dir() else []:
                    ctypes.CDLL(str(path))
        self.patch_loaded()

    def patch_loaded(self) -> None:
        """All libraries in this process that have not been patched."""
        for path, base in _loaded_libraries().items():
            if path not in self._patched and OURS.search(path):
                self._patched.add(path)
                self._patch(Path(path), base)
                self._note_missing_code(Path(path), base)

    def _patch(self, path: Path, base: int) -> None:
        symbols = [(offset, name) for offset, name in self._symbols(path) if name not in REAL]
        if not symbols:
            return
        first = base + min(offset for offset, _ in symbols) & -PAGE
        size = (base + max(offset for offset, _ in symbols) - first + 2 * PAGE) & -PAGE
        self._make(first, size, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        for offset, name in symbols:
            ctypes.memmove(base + offset, JUMP + struct.pack("<Q", self._target(name)), 14)
        self._make(first, size, mmap.PROT_READ | mmap.PROT_EXEC)

    def _note_missing_code(self, path: Path, base: int) -> None:
        """A launch out of a library fails if one of its fat binaries has nothing for the device."""
        from simulated_gpu.fat_binaries import read_fat_binaries

        device = int(self._device.device_architecture())
        if not all(any(code.runs_on(device) for code in each) for each in read_fat_binaries(path)):
            end = base + path.stat().st_size
            self._device.simulated_without_code(ctypes.c_void_p(base), ctypes.c_void_p(end))

    def _make(self, address: int, size: int, protection: int) -> None:
        if self._protect(address, size, protection):
            raise OSError(
                ctypes.get_errno(),
                "the simulated GPU cannot change the protection of a library's memory",
            )

    def _target(self, name: str) -> int:
        stand_in = "simulated_other_codec" if OTHER_CODECS.match(name) else f"sim_{name}"
        try:
            return ctypes.cast(getattr(self._device, stand_in), ctypes.c_void_p).value or 0
        except AttributeError:
            return self._thunks.get(name) or self._thunk(name)

    def _thunk(self, name: str) -> int:
        """A function that says that this one is not simulated, and fails."""
        kind = (
            "simulated_nvjpeg_unsupported" if name.startswith("nvjpeg") else "simulated_unsupported"
        )
        function = ctypes.cast(getattr(self._device, kind), ctypes.c_void_p).value
        text, at = name.encode() + b"\0", self._room_used
        # mov rdi, text; jmp
        code = (
            b"\x48\xbf" + struct.pack("<Q", self._room_at + at) + JUMP + struct.pack("<Q", function)
        )
        start = at + -(-len(text) // 16) * 16
        self._room[at : at + len(text)] = text
        self._room[start : start + len(code)] = code
        self._room_used = start + 32
        self._thunks[name] = self._room_at + start
        return self._thunks[name]

    def _symbols(self, path: Path) -> list[tuple[int, str]]:
        """(offset, name) of the functions to overwrite; read once for each file, since the largest
        takes half a second.
        """
        state = path.stat()
        kept = self._cache / f"{path.name}-{state.st_size}-{state.st_mtime_ns}.json"
        if not kept.exists():
            new = kept.with_suffix(f".{id(self)}")
            new.write_text(json.dumps(_read_symbols(path)))
            new.rename(kept)
        return json.loads(kept.read_text())


def _read_symbols(path: Path) -> list[tuple[int, str]]:
    from elftools.elf.elffile import ELFFile

    found = {}
    with path.open("rb") as file:
        elf = ELFFile(file)
        for table in filter(None, map(elf.get_section_by_name, (".symtab", ".dynsym"))):
            names, entries = elf.get_section(table["sh_link"]).data(), table.data()
            # Not iter_symbols: it takes seconds for a quarter of a million.
            for name_at, info, _, section, value, _ in struct.iter_unpack("<IBBHQQ", entries):
                if section and info & 15 in (2, 10):  # a function, in this library
                    name = names[name_at : names.index(b"\0", name_at)].decode()
                    if SIMULATED.fullmatch(name):
                        found[name] = value
    return [(value, name) for name, value in found.items()]


def _loaded_libraries() -> dict[str, int]:
    """{path: address} of the libraries in this process."""
    found: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and ".so" in fields[5] and int(fields[2], 16) == 0:
            found.setdefault(fields[5], int(fields[0].split("-")[0], 16))
    return found
