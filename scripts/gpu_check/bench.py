"""What all parts share: the images, the work, and how a program is run within a time limit."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dali_pipes.errors import DaliPipesError
from dali_pipes.measure.workload import Workload
from dali_pipes.plan.transforms import TrainTransform
from dali_pipes.system.provenance import gpu_is_simulated
from gpu_check.config import GpuCheckConfig

ROOT = Path(__file__).parents[2]


class PartError(DaliPipesError):
    """The part has no result."""


@dataclass(frozen=True)
class Bench:
    """The setting in which all parts run.

    Attributes:
        images: the path of a saved manifest, repeated to the length of an epoch.
        real_images: the path of a saved manifest of the same images, each once.
        details: the folder that the parts write into.
        cpus: how many cores there are.
    """

    config: GpuCheckConfig
    images: str
    real_images: str
    details: Path
    cpus: int

    @property
    def is_small(self) -> bool:
        """Whether the parts only have to run: without a GPU, or on a simulated one.

        Then images and networks are small.
        """
        return self.config.dry_run or gpu_is_simulated()

    def work(self) -> Workload:
        form = (
            TrainTransform(size=64)
            if self.is_small
            else TrainTransform(dtype="fp16", memory_format="channels_last")
        )
        return Workload(self.images, form, self.config.batch_size, seed=0)

    def model(self, name: str) -> str:
        return "shufflenet_v2_x0_5" if self.is_small else name

    def form(self, part: str) -> list[str]:
        """The options that all programs share; their transform is the one of `work`."""
        transform = ["size=64"] if self.is_small else ["dtype=fp16", "memory_format=channels_last"]
        work = [f"out={self.details / part}", f"batch_size={self.config.batch_size}"]
        return [*work, *(f"transform.{option}" for option in transform)]

    def job(
        self,
        part: str,
        job: str,
        options: list[str],
        limit: float,
        statuses: tuple[int, ...] = (0,),
    ) -> dict[str, Any]:
        """Runs a job of dali-pipes, and returns the line of JSON that it prints; see `program`."""
        return self.program(part, ["dali_pipes.cli", job], options, limit, statuses)

    def program(
        self,
        part: str,
        words: list[str],
        options: list[str],
        limit: float,
        statuses: tuple[int, ...] = (0,),
    ) -> dict[str, Any]:
        """Runs a module as a program on the images, and returns the line of JSON that it prints.

        Its stderr goes into details/PART.log.

        Args:
            words: the module, and what comes before its options.
            limit: seconds after which it is ended.
            statuses: the exit statuses with which it has a result.

        Raises:
            PartError: it took longer, or ended with another status.
        """
        command = [sys.executable, "-m", *words, f"data.train={self.images}", *options]
        status, output = self.run(part, command, limit)
        if status not in statuses or not output.strip():
            last = " ".join((self.details / f"{part}.log").read_text().split())[-400:]
            raise PartError(f"{' '.join(words)} ended with status {status}: {last}")

        found: dict[str, Any] = json.loads(output.splitlines()[-1])
        return found

    def run(
        self,
        part: str,
        command: list[str],
        limit: float,
        folder: Path | None = None,
        **environment: str,
    ) -> tuple[int, str]:
        """Runs a command, and ends it with all that it has started.

        Its stderr goes into details/PART.log.

        Args:
            folder: where it runs; None: where this program runs.
            environment: variables that are set for it.

        Returns:
            its exit status and its stdout.

        Raises:
            PartError: it took longer than `limit` seconds.
        """
        with open(self.details / f"{part}.log", "w") as log:
            log.write(" ".join(command) + "\n")
            log.flush()

            with subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # so that its own processes can be ended with it
                start_new_session=True,
                cwd=folder,
                env=os.environ | {"CUDA_VISIBLE_DEVICES": _first_gpu()} | environment,
            ) as process:
                try:
                    output, _ = process.communicate(timeout=limit)
                except subprocess.TimeoutExpired:
                    raise PartError(
                        f"ended after {limit:.0f} s; details/{part}.log says how far it came"
                    ) from None
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)

        return process.returncode, output


def _first_gpu() -> str:
    """The first visible GPU; with more of them, the two jobs of `corun` would have one each."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
