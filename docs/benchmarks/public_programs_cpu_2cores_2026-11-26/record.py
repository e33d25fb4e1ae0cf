"""Runs a program as python would, with a seed, and writes the losses of its first steps.

    python record.py SEED STEPS OUT.json program.py ARGS      # or -m package.module ARGS

The process ends at that step. "weights" is a hash of what the optimizer had before its first step,
so that runs of one seed with two loaders show that they began with the same model.
"""

import hashlib
import json
import os
import random
import runpy
import sys
from pathlib import Path

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def main(seed: int, steps: int, out: Path, words: list[str]) -> None:
    losses, weights = list[float](), hashlib.sha256()

    def see(optimizer, args, options):
        if len(losses) == 1:
            for group in optimizer.param_groups:
                for weight in group["params"]:
                    weights.update(weight.detach().contiguous().numpy().tobytes())

    def note(loss, *args, **options):
        losses.append(loss.item())
        if len(losses) == steps:
            result = {"seed": seed, "weights": weights.hexdigest()[:12], "losses": losses}
            out.write_text(json.dumps(result))
            os._exit(0)
        return backward(loss, *args, **options)

    register_optimizer_step_pre_hook(see)
    backward, torch.Tensor.backward = torch.Tensor.backward, note
    torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)

    sys.path[0] = str(Path.cwd())
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]).absolute(), sys.argv[4:])
