"""Removes from an environment what the image does not use, and prints how large each part was.

    python3 slim.py /opt/venv

These stay, although a CPU never uses them: every library that another one is linked against; what
CuPy compiles kernels with (NVRTC, the headers of CUDA's runtime and its own); nvJPEG, and
nvImageCodec with all of its extensions; all of cuDNN and NCCL.
"""

import shutil
import sys
from pathlib import Path

# Patterns of files, by the reason why they are not needed. CUDA 12's wheels have a folder for each
# library, such as nvidia/cublas; CUDA 13's have one for all of them, nvidia/cu13.
UNUSED = {
    "Triton, which torch.compile runs; it needs a C compiler, and the image has none": [
        "triton",
        "triton-*.dist-info",
    ],
    "cuSOLVER for several GPUs: nothing here is linked against it": [
        "nvidia/*/lib/libcusolverMg.so.*"
    ],
    "a second build of NVRTC, which nothing here opens": ["nvidia/*/lib/*.alt.so.*"],
    # .cpp, .pyx and .pxd; CUDA 13's wheel has only .pxd
    "C++ that cuda-bindings was generated into and has been compiled from": [
        "cuda/**/*.[cp][pyx][pxd]"
    ],
    "headers for building extensions of PyTorch, DALI and Arrow": [
        "torch/include",
        "nvidia/dali/include",
        "pyarrow/include",
    ],
    "headers of CUDA libraries; those of its runtime and of cuRAND stay for CuPy": [
        *(
            f"nvidia/*/include/{library}*"
            for library in ("cublas", "cufft", "cufile", "cusolver", "cusparse", "cupti")
        ),
        *(
            f"nvidia/{library}/include"
            for library in ("cudnn", "cusparselt", "nccl", "nvshmem", "nvimgcodec", "libnvcomp")
        ),
    ],
    "programs": ["torch/bin/protoc*", "nvidia/libnvcomp/bin"],
    "what code on the GPU would be linked with": [
        "nvidia/nvshmem/lib/*.a",
        "nvidia/nvshmem/lib/*.bc",
        "numpy/**/*.a",
    ],
    "Arrow over the network": ["pyarrow/*flight*", "pyarrow/*_s3*"],
    "test suites": ["**/tests"],
    "type stubs": ["**/*.pyi"],
}


def other_pythons(packages: Path) -> list[Path]:
    """Lists extension modules that this version of Python cannot load."""
    this = f".cpython-{sys.version_info.major}{sys.version_info.minor}-"
    return [each for each in packages.rglob("*.cpython-*.so") if this not in each.name]


def remove(paths: list[Path]) -> int:
    """Removes files and folders; returns the bytes that are free now."""
    freed = 0
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            freed += sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())
            shutil.rmtree(path)
        elif path.is_symlink() or path.exists():  # not inside a folder that is gone
            freed += path.lstat().st_size
            path.unlink()
    return freed


def main(environment: Path) -> None:
    (packages,) = environment.glob("lib/python3*/site-packages")
    total = freed = remove(other_pythons(packages))
    print(f"{freed / 1e6:6.0f} MB  extension modules for other versions of Python")

    for reason, patterns in UNUSED.items():
        freed = 0
        for pattern in patterns:
            found = sorted(packages.glob(pattern))
            if not found:
                sys.exit(
                    f"error: {packages} holds no {pattern} ({reason}); the packages have "
                    "changed: look at it again"
                )
            freed += remove(found)
        print(f"{freed / 1e6:6.0f} MB  {reason}")
        total += freed

    print(f"{total / 1e6:6.0f} MB  in all")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
