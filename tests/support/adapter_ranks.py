"""The examples of adapters, and their programs of several ranks (ranks.py)."""

import json
import runpy
from pathlib import Path

import torch
from ranks import start_ranks

EXAMPLES = Path(__file__).parents[2] / "examples"
WORKERS = Path(__file__).parents[1] / "adapters"


def example(library):
    """Its main(), on one thread: those of PyTorch wait for each other where cores are few and
    busy.
    """
    main, threads = (
        runpy.run_path(str(EXAMPLES / library / "train.py"))["main"],
        torch.get_num_threads(),
    )

    def run(*arguments, **options):
        torch.set_num_threads(1)
        try:
            return main(*arguments, **options)
        finally:
            torch.set_num_threads(threads)

    return run


def start(name, *arguments, ranks=None):
    """Starts a worker of tests/adapters/."""
    return start_ranks(WORKERS / f"{name}.py", *arguments, ranks=ranks)


def rows(folder, rank):
    """What a rank has noted so far, a line a batch."""
    file = folder / f"rank{rank}.jsonl"
    return (
        [json.loads(line) for line in file.read_text().splitlines() if line.endswith("]")]
        if file.exists()
        else []
    )
