"""What only a GPU can show, in at most eight minutes; started by scripts/gpu_check.sh. See docs/gpu-check.md."""

import sys

from _hydra import run

from dali_pipes.gpu_check.run import gpu_check

if __name__ == "__main__":
    run("gpu_check", lambda config: sys.exit(not gpu_check(config)))
