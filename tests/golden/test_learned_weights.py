"""What the demo's experiment learns in an epoch, by hash: `experiment=demo_resnet18 epochs=1` with
less to compute, on one thread, with kernels that all CPUs have (tests/support/trained.py).

The bits were equal in two runs, and with glibc, MKL and NumPy held to the instructions of older
CPUs, all on one kind of CPU (AMD's Zen 3). They have not been tried on another. Other versions of
PyTorch may sum in another order: with those only the losses are held, within a hundredth.
"""

import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest
from golden import hold_to
from trained import train_pinned

FILE = Path(__file__).with_name("weights.json")
VERSIONS = {name: version(name) for name in ("torch", "torchvision", "numpy", "pillow")}


@pytest.mark.slow
def test_an_epoch_of_the_demo_ends_with_the_same_weights(tmp_path):
    found = train_pinned(tmp_path)
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    if kept.get("versions") == VERSIONS or os.environ.get("UPDATE_GOLDEN") == "1":
        hold_to(FILE, {"versions": VERSIONS, "learned": found})
        return

    for loader, learned in found.items():
        before = kept["learned"][loader]
        assert learned["learning rates"] == before["learning rates"]
        losses, losses_before = (
            [float(loss) for loss in each["losses"]] for each in (learned, before)
        )
        assert losses == pytest.approx(losses_before, abs=0.01)
