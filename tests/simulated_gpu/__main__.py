"""Runs a command on the simulated GPU, and all Python programs that it starts:

python -m tests.simulated_gpu pytest -m "needs_cuda and not gpu_pixels and not slow"
python -m tests.simulated_gpu python program.py
"""

import os
import sys
from pathlib import Path

from .build import CannotBuild, build
from .refusal import Refused, check

STARTUP = Path(__file__).parent / "startup"


def environment() -> dict[str, str]:
    """What makes Python start with the simulated GPU."""
    inherited = os.environ.get("PYTHONPATH")
    return {
        "SIMULATED_GPU": str(build()),
        "DALI_USE_VMM": "0",  # no virtual memory management
        # kernels of PyTorch run on threads that would spin between them
        "OMP_WAIT_POLICY": "passive",
        "PYTHONPATH": os.pathsep.join([str(STARTUP), *([inherited] if inherited else [])]),
    }


def main() -> None:
    if not sys.argv[1:]:
        sys.exit(__doc__)
    try:
        check()
        os.environ.update(environment())
    except (Refused, CannotBuild) as error:
        sys.exit(str(error))
    os.execvp(sys.argv[1], sys.argv[1:])


main()
