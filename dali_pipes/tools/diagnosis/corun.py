"""Further training programs on the same machine (corun)."""

import base64
import contextlib
import os
import pickle
from collections.abc import Iterator
from typing import Any

from dali_pipes.data.manifest import Manifest
from dali_pipes.measure.protocol import gpu_of
from dali_pipes.measure.worker_process import FreshProcess
from dali_pipes.system.child import Controller
from dali_pipes.tools.diagnosis.config import DiagnoseConfig
from dali_pipes.tools.diagnosis.configured_program import ConfiguredProgram


@contextlib.contextmanager
def corun_programs(config: DiagnoseConfig, manifest: str) -> Iterator[None]:
    """Runs `corun` - 1 of them within the `with` block, each on a separate GPU as far as there are enough.

    Args:
        manifest: a saved one.

    Raises:
        ArmError: one of them failed.
    """
    job: dict[str, Any] = {"config": base64.b64encode(pickle.dumps(config)).decode(), "manifest": manifest}
    cpus = os.sched_getaffinity(0)
    with contextlib.ExitStack() as stack:
        others = [
            stack.enter_context(FreshProcess(f"{__name__}:train", job, f"program {number + 1}", cpus, gpu_of(number, config.corun)))
            for number in range(1, config.corun)
        ]
        for other in others:
            other.answer()
        yield
        for other in others:
            if not other.running:
                other.answer()


def train(controller: Controller) -> None:
    manifest = Manifest.load(controller.job["manifest"])
    program = ConfiguredProgram(pickle.loads(base64.b64decode(controller.job["config"])), manifest, [])
    step = program.step()
    with program.feed() as feed:
        step(next(feed.batches))
        controller.send({})
        while not controller.stop.is_set():
            step(next(feed.batches))
