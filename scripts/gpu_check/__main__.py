"""What only a GPU can show, in at most eight minutes; started by scripts/gpu_check.sh. See docs/gpu-check.md."""

import sys

from hydra.core.config_store import ConfigStore

from dali_pipes.cli.hydra import run
from gpu_check.config import GpuCheckConfig
from gpu_check.run import gpu_check

if __name__ == "__main__":
    ConfigStore.instance().store(name="gpu_check_schema", node=GpuCheckConfig)
    run("gpu_check", lambda config: sys.exit(not gpu_check(config)))
