"""The types of results: what a trial's file and result.json contain.

docs/result.md explains each key.
"""

from typing import Any, Literal, NotRequired, Required, TypedDict

from dali_pipes.system.provenance import Provenance
from dali_pipes.system.telemetry import Sample

ComparedFigure = Literal["images_per_s", "cpu_s_per_1000_images"]
Figures = dict[str, Any]  # of a trial or of an arm, by name


class JobFigures(TypedDict):
    """What one process measured."""

    first_batch_s: float
    warm_up: dict[str, Any]  # seconds, images, steady, rates
    start: float
    end: float
    images: int
    images_per_s: float
    cpu_s_per_1000_images: float
    cgroup_cpu_s_per_1000_images: float | None
    throttled_s: float | None
    waits_s: list[float]
    epoch_starts: list[int]
    device: str
    decodes: str
    pinned_mib: float | None


class Trial(TypedDict):
    arm: str
    phase: str
    round: int
    jobs: list[JobFigures]
    samples: list[Sample]
    gpu_missing: dict[str, str]
    sampler_cost: float


class Interval(TypedDict):
    estimate: float
    low: float | None
    high: float | None
    claim: NotRequired[str]


class Compared(TypedDict):
    images_per_s: Interval
    cpu_s_per_1000_images: Interval


class Control(Compared):
    holds: bool


class RunFigures(TypedDict):
    arms: dict[str, Figures]
    control: Control | None
    planning: list[dict[str, Any]]  # native, planned, and the keys of Compared


class ArmDifference(TypedDict):
    max: float
    mean: float
    p99: float
    same_ids: bool
    other_targets: NotRequired[list[str]]  # names
    allowed: NotRequired[dict[str, float]]  # mean, p99


class Agreement(TypedDict, total=False):
    images: Required[int]
    arms: Required[dict[str, ArmDifference]]
    note: str
    max: float
    mean: float
    p99: float
    same_ids: bool
    reference: str


class Result(RunFigures):
    """result.json of a benchmark."""

    schema: int
    baseline: str
    not_measured: dict[str, str]
    telemetry_cost: float | None
    agreement: Agreement
    workers: dict[str, dict[str, Any]]
    work: dict[str, Any]
    protocol: dict[str, Any]
    provenance: Provenance
