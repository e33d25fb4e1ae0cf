"""The types of results: what a trial's file and result.json contain.

docs/result.md explains each key.
"""

from typing import Any, Literal, NotRequired, Required, TypedDict

from dali_pipes.system.provenance import Provenance
from dali_pipes.system.telemetry import Sample

ComparedFigure = Literal["images_per_s", "cpu_s_per_1000_images"]


class WarmUp(TypedDict):
    seconds: float
    images: int
    steady: bool
    rates: list[float]


class Job(TypedDict):
    """What one process measured."""

    first_batch_s: float
    warm_up: WarmUp
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
    jobs: list[Job]
    samples: list[Sample]
    gpu_missing: dict[str, str]
    sampler_cost: float


class Interval(TypedDict):
    estimate: float
    low: float | None
    high: float | None


class ClaimedRatio(Interval):
    claim: str


class Compared(TypedDict):
    images_per_s: ClaimedRatio
    cpu_s_per_1000_images: ClaimedRatio


class Planning(Compared):
    native: str
    planned: str


class Control(Compared):
    holds: bool


class GpuFigures(TypedDict):
    gpu_utilization: float | None
    sm_utilization: float | None
    nvjpg_utilization: float | None
    gpu_memory_mib: float | None
    joules_per_1000_images: float | None


class TrialFigures(GpuFigures):
    images_per_s: float
    cpu_s_per_1000_images: float
    cpus: float
    cgroup_cpu_s_per_1000_images: float | None
    wait_share: float
    first_batch_s: float
    warm_up_s: float | None
    steady: Any  # a trial's: bool; an arm's: "5 of 6" trials
    throttled_s: float | None
    peak_rss_mib: float | None
    peak_pss_mib: float | None
    threads: float | None
    processes: float | None
    pinned_mib: float | None


class ArmFigures(TrialFigures, total=False):
    """An arm that failed or was skipped has only the reason."""

    failed: str | None
    skipped: str | None
    images_per_s_low: float
    images_per_s_high: float
    cpu_s_per_1000_images_low: float
    cpu_s_per_1000_images_high: float
    wait_ms: dict[str, float | None]  # p50, p95, p99, first_of_epoch_p50
    device: str
    decodes: str
    trials: int
    ratio: Compared | None
    share_of_ceiling: float | None
    decode_regions_share: float | None
    decode_whole_share: float | None


class RunFigures(TypedDict):
    arms: dict[str, ArmFigures]
    control: Control | None
    planning: list[Planning]


class Difference(TypedDict):
    max: float
    mean: float
    p99: float


class ArmDifference(Difference):
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


class Workers(TypedDict):
    images_per_s: dict[str, float]
    kept: int


class Facts(TypedDict):
    work: dict[str, Any]
    protocol: dict[str, Any]
    provenance: Provenance


class Result(RunFigures, Facts):
    """result.json of a benchmark."""

    schema: int
    baseline: str
    not_measured: dict[str, str]
    telemetry_cost: float | None
    agreement: Agreement
    workers: dict[str, Workers]
