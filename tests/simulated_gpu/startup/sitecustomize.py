"""Python imports this at its start, if this folder is in PYTHONPATH: the command `python -m
tests.simulated_gpu` puts it there.
"""

import os
import sys
from pathlib import Path

if os.environ.get("SIMULATED_GPU"):
    sys.path.insert(0, str(Path(__file__).parents[2]))  # tests/
    import simulated_gpu.hooks

    sys.path.pop(0)
    simulated_gpu.hooks.install(Path(os.environ["SIMULATED_GPU"]))
