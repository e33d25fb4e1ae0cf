"""How many machines a run has, by the variables that its launcher sets."""

import os


def nodes_of_run() -> int | None:
    """The number of machines, as torchrun and Ray (WORLD_SIZE and LOCAL_WORLD_SIZE) or SLURM
    (SLURM_NNODES) say it; None if none of them does.
    """
    ranks, here = (os.environ.get(name, "") for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if ranks.isdecimal() and here.isdecimal() and int(here):
        return max(1, int(ranks) // int(here))
    machines = os.environ.get("SLURM_NNODES", "")
    return int(machines) if machines.isdecimal() else None
