"""Compiles the C half with gcc when it is first needed, into a cache folder that is named by the
content of the sources.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from elftools.elf.elffile import ELFFile

from . import mixing_kernels, refusal

SOURCES = Path(__file__).parent / "c"
DEVICE = ["core.c", "runtime.c", "nvjpeg.c", "driver.c", "cubin.c"]
PARTS_OF_TORCH = ["torch_kernels", "torch_memory"]
FLAGS = [
    "-O1",
    "-g",
    "-fPIC",
    "-pthread",
    "-Wall",
    "-Wno-unused-parameter",
    "-Wno-unused-function",
    "-Wno-attributes",
]


class CannotBuild(Exception):
    """What is missing, and which package brings it."""


def build() -> Path:
    """The folder with libcuda.so.1 and libnvidia-ml.so.1."""
    cache = (
        Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        / "dali_pipes"
        / "simulated_gpu"
    )
    include = [*headers(), SOURCES]
    key = hashlib.sha256(repr((FLAGS, include, refusal.installed())).encode())
    for source in [
        Path(__file__),
        Path(mixing_kernels.__file__),
        mixing_kernels.KERNELS,
        *sorted(SOURCES.iterdir()),
    ]:
        key.update(source.read_bytes())
    built = cache / key.hexdigest()[:16]
    if not built.exists():
        _compile_into(built, [f"-I{folder}" for folder in include])
    return built


def headers() -> list[Path]:
    """The folders with the headers of CUDA's runtime and driver and of nvJPEG, out of the installed
    wheels.
    """
    wanted = {
        "cuda_runtime_api.h": "nvidia-cuda-runtime",
        "nvjpeg.h": "nvidia-nvjpeg",
        "crt/host_defines.h": "triton",  # the runtime's wheel leaves it out
    }
    folders = []
    for header, package in wanted.items():
        where = next(
            (
                root / folder
                for root, folder in _include_folders()
                if (root / folder / header).exists()
            ),
            None,
        )
        if where is None:
            raise CannotBuild(f"no {header} in the installed packages; {package} brings it")
        folders.append(where)
    return list(dict.fromkeys(folders))


def _include_folders() -> Iterator[tuple[Path, Path]]:
    for package, pattern in (("nvidia", "*/include"), ("triton", "backends/nvidia/include")):
        found = importlib.util.find_spec(package)
        for root in map(Path, (found and found.submodule_search_locations) or []):
            for folder in sorted(root.glob(pattern)):
                yield root, folder.relative_to(root)


def _compile_into(built: Path, include: list[str]) -> None:
    """In a folder beside it, which is renamed when all is there, so that a second process finds all
    or nothing.
    """
    if shutil.which("gcc") is None:
        raise CannotBuild("no gcc; the package gcc brings it")
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as folder:
        made = Path(folder) / "made"
        made.mkdir()
        for source in DEVICE:
            _gcc(*FLAGS, *include, "-c", str(SOURCES / source), "-o", f"{folder}/{source}.o")
        (Path(folder) / "unsupported.c").write_text(
            _unsupported(Path(folder) / "driver.c.o", include)
        )
        objects = [f"{folder}/{source}.o" for source in DEVICE]
        _gcc(
            *(
                *FLAGS,
                "-shared",
                "-Wl,-soname,libcuda.so.1",
                "-Wl,-Bsymbolic",
                *objects,
                f"{folder}/unsupported.c",
            ),
            *("-ldl", "-o", str(made / "libcuda.so.1")),
        )
        _gcc(
            *(
                *FLAGS,
                *include,
                "-shared",
                "-Wl,-soname,libnvidia-ml.so.1",
                "-Wl,-rpath,$ORIGIN",
                str(SOURCES / "nvml.c"),
            ),
            *(str(made / "libcuda.so.1"), "-o", str(made / "libnvidia-ml.so.1")),
        )
        for part in PARTS_OF_TORCH:
            _compile_for_torch(part, made / f"{part}.so", include)
        _compile_mixing(made / "kernels.so")
        try:
            made.rename(built)
        except OSError:
            if not built.exists():
                raise


def _compile_for_torch(part: str, to: Path, include: list[str]) -> None:
    """Half a minute for the kernels, because of PyTorch's headers."""
    torch = Path(importlib.util.find_spec("torch").origin).parent
    folders = [f"-I{torch}/include", f"-I{torch}/include/torch/csrc/api/include", *include]
    libraries = [f"-L{torch}/lib", "-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda", "-ldl"]
    _gcc(
        "-O0",
        "-fPIC",
        "-shared",
        "-std=c++17",
        *folders,
        str(SOURCES / f"{part}.cpp"),
        "-o",
        str(to),
        *libraries,
        "-lstdc++",
    )


def _compile_mixing(to: Path) -> None:
    """The sanitizer calls a function of mixing_kernels.py; gcc would link its own."""
    with tempfile.TemporaryDirectory() as folder:
        source, compiled = mixing_kernels.write(Path(folder)), f"{folder}/mixing.o"
        includes = [f"-I{folder}", f"-I{mixing_kernels.KERNELS.parent}"]
        options = ["-std=c++17", "-O2", "-ffp-contract=off", "-fPIC", "-fsanitize=alignment"]
        _gcc(*options, *includes, "-c", str(source), "-o", compiled)
        _gcc("-shared", compiled, "-o", str(to), "-lstdc++", "-ldl")


def _gcc(*arguments: str) -> str:
    done = subprocess.run(["gcc", *arguments], capture_output=True, text=True)
    if done.returncode:
        hint = "; the package libjpeg62-turbo-dev brings jpeglib.h" if "jpeg" in done.stderr else ""
        raise CannotBuild(f"gcc failed{hint}:\n{done.stderr}")
    return done.stdout


def _unsupported(driver: Path, include: list[str]) -> str:
    """C that defines each function of cuda.h that driver.c does not: it says its name and fails."""
    with driver.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".symtab")
        defined = {
            symbol.name for symbol in symbols.iter_symbols() if symbol["st_shndx"] != "SHN_UNDEF"
        }
    with tempfile.NamedTemporaryFile("w", suffix=".c") as source:
        source.write("#include <cuda.h>\n")
        source.flush()
        declared = re.findall(r"\bCUresult\s+(cu[A-Z]\w*)\s*\(", _gcc("-E", *include, source.name))
    lines = ["int simulated_driver_unsupported(const char *);"]
    for name in sorted(set(declared) - defined):
        lines.append(f'int {name}(void) {{ return simulated_driver_unsupported("{name}"); }}')
    return "\n".join(lines) + "\n"
