"""All checks that need a GPU, in less than ten minutes; started by scripts/gpu_check.sh. See
docs/gpu-check.md.
"""

import sys

from dali_pipes.cli.hydra import run
from gpu_check.config import register
from gpu_check.run import gpu_check

if __name__ == "__main__":
    register()
    run("gpu_check", lambda config: sys.exit(not gpu_check(config)), __doc__ or "")
