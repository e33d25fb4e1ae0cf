"""Measures three ways from DALI's memory into PyTorch's: images/s, CPU time and GPU memory.

The ways are measured in rounds of random order. With batches=4 there is one short round, to see
whether all of them run.

    python scripts/copies_into_torch.py data.train=/my/images batch_size=256 \\
        transform.dtype=fp16 transform.memory_format=channels_last

    python scripts/copies_into_torch.py data.train=/my/images batches=4
"""

import json

from gpu_check.copies import copies

from dali_pipes.cli.hydra import run
from dali_pipes.tools.preview.run import PreviewConfig


def job(config: PreviewConfig) -> None:
    print(json.dumps(copies(config)))


if __name__ == "__main__":
    run("preview", job, __doc__ or "")
