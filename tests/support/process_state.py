"""What belongs to a process and not to a test, and what a test changed of it. Later tests of the
same worker would find it so, and which those are differs from run to run.
"""

import builtins
import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageFile

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
# libraries add builtins and variables when they are first imported, and jobs variables when they
# start, if nobody else has
BUILTINS = set(vars(builtins)) - {"_"}
VARIABLES = set(os.environ) - {"PYTEST_CURRENT_TEST"}
MISSING = "missing"


def read_state() -> dict:
    """By name; values are compared by `==`."""
    return {
        **{f"builtins.{name}": getattr(builtins, name, MISSING) for name in BUILTINS},
        **{
            f"os.environ[{name!r}]": value
            for name, value in os.environ.items()
            if name in VARIABLES or name.startswith("DALI_PIPES")
        },
        **{f"signal.{number.name}": signal.getsignal(number) for number in SIGNALS},
        "Path.cwd()": Path.cwd(),
        "os.umask()": _umask(),
        "sys.argv": list(sys.argv),
        # libraries add folders of their own when they are imported
        **{f"sys.path[{place!r}]": "there" for place in sys.path if "site-packages" not in place},
        "sys.excepthook": sys.excepthook,
        "sys.stdout of the interpreter": sys.__stdout__,
        "multiprocessing.get_start_method()": multiprocessing.get_start_method(allow_none=True)
        # the first use sets the default, which is the first of all
        or multiprocessing.get_all_start_methods()[0],
        "logging's level": logging.getLogger().level,
        "logging.disable()": logging.root.manager.disable,
        "numpy.geterr()": np.geterr(),
        "Image.MAX_IMAGE_PIXELS": Image.MAX_IMAGE_PIXELS,
        "ImageFile.LOAD_TRUNCATED_IMAGES": ImageFile.LOAD_TRUNCATED_IMAGES,
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.is_grad_enabled()": torch.is_grad_enabled(),
        "torch.get_num_threads()": torch.get_num_threads(),
        "torch.are_deterministic_algorithms_enabled()": (
            torch.are_deterministic_algorithms_enabled()
        ),
        "torch.backends.cudnn.benchmark": torch.backends.cudnn.benchmark,
        "torch.backends.cudnn.deterministic": torch.backends.cudnn.deterministic,
        "torch.distributed": torch.distributed.is_available()
        and torch.distributed.is_initialized(),
    }


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def find_changes(before: dict, after: dict) -> list[str]:
    """What differs, each as "NAME: before → after"."""
    return [
        f"{name}: {before.get(name, MISSING)!r} → {after.get(name, MISSING)!r}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name, MISSING) != after.get(name, MISSING)
    ]
