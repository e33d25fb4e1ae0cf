"""Forks again and again while threads finish images; each child finishes some of its own. Ends with
1 if a child hangs.
"""

import os
import sys
import threading
import time

import numpy as np
import torch

import dali_pipes as dp
from dali_pipes.backends.pixels.finish import DecodedTensor, View
from dali_pipes.plan.geometry import Geometry
from dali_pipes.plan.plan import PlannedView
from dali_pipes.plan.steps.operations import Augmentation

FORKS, HANGS_AFTER_S = 8, 10
TRANSFORM = dp.TrainTransform(size=4, augment=["TrivialAugmentWide"])


def finish_one(view):
    """An image of 4 × 4 pixels, as it is stored, into a batch of one."""
    one, pair = np.ones(1, bool), np.array([[4, 4]])
    geometry = Geometry(
        source=pair,
        region=np.array([[0, 0, 4, 4]]),
        resize=np.array([[6, 6]]),
        crop=np.array([[1, 1]]),
        flip=one,
        vertical_flip=one,
    )
    drawn = Augmentation(
        np.zeros((1, 1), np.int8),
        np.zeros((1, 1), np.float32),
        np.zeros((1, 4), np.int64),
        np.zeros((1, 0)),
        np.zeros((1, 0, 2, 3)),
    )
    planned, pixels = PlannedView(geometry, drawn, (4, 4)), torch.zeros(4, 4, 3, dtype=torch.uint8)
    view.write(
        view.resize(DecodedTensor(pixels, 3), planned, 0), planned, 0, torch.empty(1, 3, 4, 4)
    )


def fork_while_a_thread_begins(delay_s):
    """In a process that has finished nothing yet."""
    view = View(TRANSFORM)
    view.run_every_operator()
    begins = [
        threading.Thread(target=lambda: [finish_one(view) for _ in range(20)]) for _ in range(3)
    ]
    for each in begins:
        each.start()
    time.sleep(delay_s)
    child = os.fork()
    if not child:
        finish_one(View(TRANSFORM))
        os._exit(0)
    return ends_well(child)


def ends_well(child):
    until = time.monotonic() + HANGS_AFTER_S
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        if time.monotonic() > until:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return False
        time.sleep(0.001)
    return ended[1] == 0


def main():
    torch.set_num_threads(1)
    hung = 0
    for number in range(FORKS):
        between = os.fork()
        if not between:
            os._exit(0 if fork_while_a_thread_begins(number * 0.002) else 1)
        hung += os.waitpid(between, 0)[1] != 0
    print(f"{hung} of {FORKS} children hung", flush=True)
    os._exit(hung > 0)


if __name__ == "__main__":
    sys.exit(main())
