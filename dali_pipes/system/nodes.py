"""How many machines a run has."""

import os


def nodes_of_run() -> int | None:
    """By what torchrun and Ray (WORLD_SIZE and LOCAL_WORLD_SIZE) or SLURM (SLURM_NNODES) set; None:
    neither says.
    """
    ranks, here = (os.environ.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if ranks.isdecimal() and here.isdecimal() and int(here):
        return max(1, int(ranks) // int(here))
    machines = os.environ.get("SLURM_NNODES", "")
    return int(machines) if machines.isdecimal() else None
