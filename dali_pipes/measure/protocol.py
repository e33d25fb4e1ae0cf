"""Runs the trials of an A/B measurement; every tool that measures loaders uses it.

    images = open_measured_images(config)
    with contextlib.closing(Trials(config, images, folder)) as trials:
        for key in list_trials(arms, baseline, pairs, seed):     # rounds in ABBA order
            trial = trials.run(key, arms[key.arm])

A trial is one process for each job (measure/trial.py), which this one starts, tells when to warm up
and when to measure, and watches (`Sampler`). docs/method.md gives the reasons.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.data.images import repeat_epoch, warm_page_cache
from dali_pipes.data.manifest import Manifest
from dali_pipes.measure.config import MeasureConfig
from dali_pipes.measure.gpus import find_gpus, gpu_of
from dali_pipes.measure.images import check_trained_model
from dali_pipes.measure.results import JobFigures, Trial
from dali_pipes.measure.rounds import TrialKey
from dali_pipes.measure.worker_process import ArmError, MeasuringProcess
from dali_pipes.measure.workload import Workload, to_dict
from dali_pipes.system.cpus import available_cpus
from dali_pipes.system.provenance import provenance, refuse_simulated_gpu
from dali_pipes.system.telemetry import Sampler


@dataclass
class _ArmProcesses:
    """The processes of one arm and what each answered first.

    Attributes:
        key: phase, arm and job; processes are used again for trials with the same key.
        stack: ends the processes when it is closed.
    """

    key: tuple[str, str, str]
    stack: contextlib.ExitStack
    processes: list[MeasuringProcess]

    # read once: with restart=false the processes answer so in their first trial only
    @cached_property
    def first_answers(self) -> list[dict[str, Any]]:
        return [process.answer() for process in self.processes]


def cores_of(config: MeasureConfig) -> frozenset[int]:
    """Returns the cores of each arm, which are the same for all."""
    return frozenset(sorted(os.sched_getaffinity(0))[: config.cpus or available_cpus()])


class Trials:
    """Runs trials of one workload, one after the other, and saves each of them as a file.

    Call `close` at the end.

    The images are read into the page cache first, so that it is equal for all arms; a small set is
    repeated (`repeat_epoch`).

    Args:
        images: what is loaded; where the arms are a DataLoader of the user's, what is known of it.
        folder: receives manifest.parquet, and trials/, whose files begin with a running number.
        corun, restart: as in `BenchmarkConfig`.

    Attributes:
        cpus: the cores of every arm.
        work: the workload of every arm.
    """

    def __init__(
        self,
        config: MeasureConfig,
        images: Manifest | dict[str, Any],
        folder: Path,
        corun: int = 1,
        restart: bool = True,
    ):
        # before anything is read or started
        refuse_simulated_gpu()
        self._config, self._corun, self._restart = config, corun, restart

        self.cpus = cores_of(config)
        self._folder, self._count = folder / "trials", 0
        self._suspended: dict[tuple[str, str, str], _ArmProcesses] = {}
        self._folder.mkdir(parents=True)

        self._epoch, manifest, transform = None, None, None
        if isinstance(images, Manifest):
            # so that the page cache is equal for all arms
            warm_page_cache(images)
            epoch = repeat_epoch(images)
            epoch.save(folder / "manifest.parquet")
            self._epoch, manifest = len(epoch), str(folder / "manifest.parquet")
            transform = config.transform
        self._data = images.describe() if isinstance(images, Manifest) else images

        asked = config.batch_size, config.seed, config.workload, check_trained_model(config)
        self.work = Workload(manifest, transform, *asked)

    def facts(self) -> dict[str, Any]:
        """`work`, `protocol` and `provenance` of a result, as docs/result.md has them."""
        names = (
            "seed",
            "pairs",
            "min_seconds",
            "min_batches",
            "max_warmup_seconds",
            "images",
            "agreement_images",
        )
        protocol = {name: getattr(self._config, name) for name in names}

        return {
            "work": self.work.to_dict()
            | {"manifest": self.work.manifest and "manifest.parquet", "epoch": self._epoch}
            | {"corun": self._corun},
            "protocol": protocol | {"restart": self._restart, "cpus": len(self.cpus)},
            "provenance": provenance(self._data, self._config.overrides),
        }

    def close(self) -> None:
        """Ends the suspended processes."""
        while self._suspended:
            self._suspended.popitem()[1].stack.close()

    def start(self, arms: dict[str, LoaderConfig], control: str | None) -> dict[str, str]:
        """Starts the processes of all arms at once, and suspends them until their first trials.

        For restart=false.

        Args:
            control: the arm that gets separate processes for the control, so that the control
                shows how far two starts differ.

        Returns:
            the arms that failed, with the reason.
        """
        failed = {}
        wanted = [("round", arm) for arm in arms] + (
            [("control", control)] if control in arms else []
        )

        # leaving the block with an error ends those that are not suspended yet
        with contextlib.ExitStack() as not_suspended:
            every = []
            for phase, arm in wanted:
                every.append(self._begin(phase, arm, self._job(arms[arm])))
                not_suspended.push(every[-1].stack)

            # an arm that fails has no figures, and the others go on
            for processes in every:
                try:
                    self._suspend(processes)
                except ArmError as error:
                    failed[processes.key[1]] = str(error)
                    processes.stack.close()
        return failed

    def _job(self, loader: LoaderConfig) -> dict[str, Any]:
        names = ("min_seconds", "min_batches", "max_warmup_seconds")
        timing = {name: getattr(self._config, name) for name in names}

        return {
            "work": self.work.to_dict(),
            "loader": to_dict(loader),
            **timing,
            "rests": not self._restart,
        }

    def run(self, key: TrialKey, loader: LoaderConfig) -> Trial:
        """Runs one trial, in `corun` processes at once.

        Returns:
            arm, phase and round; jobs: what each process answered; samples and sampler_cost: the
            telemetry of all processes; and gpu_missing: the figures that the GPU does not give,
            with the reason.

        Raises:
            ArmError: a process failed.
        """
        missing = dict[str, str]()

        with self._processes(key, self._job(loader)) as (processes, first_answers):
            # at least four samples in the shortest span
            with Sampler(
                [process.pid for process in processes], min(1.0, self._config.min_seconds / 4)
            ) as sampler:
                # the first "go": warm up
                for process in processes:
                    process.go()
                ready = [process.answer() for process in processes]
                sampler.gpus, missing = find_gpus(answer["gpu"] for answer in ready)

                # a sample before the span, since energy is interpolated between samples
                if sampler.gpus:
                    sampler.sample()

                # the second "go": measure
                for process in processes:
                    process.go()
                figures = [process.answer() for process in processes]

            missing |= {figure: why for gpu in sampler.gpus for figure, why in gpu.missing.items()}
            answers = zip(first_answers, ready, figures, strict=True)
            jobs = [first | warm_up | measured for first, warm_up, measured in answers]
            trial: Trial = {
                "arm": key.arm,
                "phase": key.phase,
                "round": key.number,
                "jobs": cast(list[JobFigures], jobs),
                "samples": sampler.samples,
                "sampler_cost": sampler.cost,
                "gpu_missing": missing,
            }

        # suspended arms keep their memory on the GPU, and NVML tells only the sum
        if not self._restart:
            trial["gpu_missing"]["memory_mib"] = (
                "with restart=false other arms use the GPU's memory too"
            )
            for gpu in (gpu for sample in trial["samples"] for gpu in sample["gpus"]):
                gpu["memory_mib"] = None

        self._count += 1
        name = f"{self._count:03d}_{key.phase}_{key.number}_{key.arm}.json"
        (self._folder / name).write_text(json.dumps(trial))
        return trial

    @contextlib.contextmanager
    def _processes(
        self, key: TrialKey, job: dict[str, Any]
    ) -> Iterator[tuple[list[MeasuringProcess], list[dict[str, Any]]]]:
        """Yields `corun` processes and their first answers.

        They are new, or with restart=false those that were suspended since their last trial.
        """
        suspended = self._suspended.pop((key.phase, key.arm, json.dumps(job)), None)
        arm = suspended or self._begin(key.phase, key.arm, job)

        # with restart=true the processes end with this block; `_suspend` takes them out of it
        with arm.stack:
            if suspended:
                for process in suspended.processes:
                    process.wake()
            elif not self._restart:
                _release_memory(arm)
            yield arm.processes, arm.first_answers
            if not self._restart:
                self._suspend(arm)

    def _begin(self, phase: str, arm: str, job: dict[str, Any]) -> _ArmProcesses:
        # longer than any answer may take: start-up, warm-up and measuring
        limit_s = 300 + self._config.max_warmup_seconds + 10 * self._config.min_seconds

        # if one of several cannot start, leaving the block ends those before it
        with contextlib.ExitStack() as stack:
            processes = list[MeasuringProcess]()
            for index in range(self._corun):
                process = MeasuringProcess(
                    "dali_pipes.measure.trial:run_trial",
                    job,
                    f"arm {arm}",
                    self.cpus,
                    gpu_of(index, self._corun),
                    limit_s,
                )
                processes.append(stack.enter_context(process))
            return _ArmProcesses((phase, arm, json.dumps(job)), stack.pop_all(), processes)

    def _suspend(self, arm: _ArmProcesses) -> None:
        _release_memory(arm)
        for process in arm.processes:
            process.sleep()

        # leaving the `with` of the old stack would end the processes
        arm.stack = arm.stack.pop_all()
        self._suspended[arm.key] = arm


def _release_memory(arm: _ArmProcesses) -> None:
    """Waits until the processes of an arm have given back the memory that they do not use."""
    _ = arm.first_answers  # they come before the answers below
    # all of them at once, then all answers
    for process in arm.processes:
        process.go()
    for process in arm.processes:
        process.answer()
