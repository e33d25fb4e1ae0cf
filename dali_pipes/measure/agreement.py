"""Compares the samples, pixels and targets that the arms deliver, in a separate process.

A benchmark calls `check_agreement` before it times anything.
"""

import random
from collections.abc import Set
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.pixels.gray import from_array
from dali_pipes.backends.pixels.tensors import to_steps
from dali_pipes.loader.batch import Ragged
from dali_pipes.measure.arms import arm_of
from dali_pipes.measure.config import LoadersConfig
from dali_pipes.measure.results import Agreement, ArmDifference
from dali_pipes.measure.worker_process import ArmError, MeasuringProcess
from dali_pipes.measure.workload import Workload, from_dict, to_dict
from dali_pipes.system.child import Controller

# pixel values that are compared: 240 MB as float32; all 128 images at 224 pixels, fewer larger ones
MOST_VALUES = 60_000_000
SHOWN = 3  # images of each arm that the report shows
AMPLIFIED = 64  # factor for the pictures of differences


class PixelBound(NamedTuple):
    """The largest accepted |difference| between the pixels of two loaders, in steps of 1/255.

    It is given as bounds on the mean and on the 99th percentile.
    """

    mean: float
    p99: float


# Between nvJPEG and libjpeg. nvJPEG's CUDA decoder makes images darker by 0.47 on average, as if it
# did not round; its JPEG engine rounds. A mean of 0.52 and a p99 of 2 were measured
# (docs/pixels.md).
NVJPEG = PixelBound(0.75, 2.0)

# Between plain and fancy chroma upsampling, with what resizing adds; docs/pixels.md has the
# measurements.
PLAIN_UPSAMPLING = PixelBound(1.5, 12.0)


def check_agreement(
    config: LoadersConfig,
    work: Workload,
    arms: dict[str, LoaderConfig],
    reference: str,
    cpus: Set[int],
    samples: Path,
) -> Agreement:
    """Compares all arms that follow the plan, or make the batches of one DataLoader; checks that
    they deliver the same.

    Args:
        reference: the arm that the others are compared with, if it follows the plan.
        samples: folder for the first images of each arm.

    Raises:
        ArmError: the arms do not deliver the same images, so nothing may be timed.
    """
    if not config.agreement_images:
        return {"images": 0, "arms": {}, "note": "agreement_images=0: the pixels were not compared"}

    # those that exist only to be compared deliver other pixels, or other samples; without a
    # manifest all are the user's DataLoader
    planned = {
        arm: to_dict(loader)
        for arm, loader in arms.items()
        if not (work.manifest and arm_of(type(loader)))
    }
    if len(planned) < 2:
        only = f"only {next(iter(planned))}" if planned else "none"
        note = f"not compared, since of these arms {only} follows the plan"
        return {"images": 0, "arms": {}, "note": note}

    # the first arm is the one that all others are compared with
    if reference in planned:
        planned = {reference: planned[reference]} | planned

    job = {
        "work": work.to_dict(),
        "loaders": planned,
        "images": config.agreement_images,
        "samples": str(samples),
    }
    agreement = _compare_in_process(job, cpus)

    # decoders of different kinds may differ by more, and the report names them
    usual = PixelBound(config.max_mean_difference, config.max_p99_difference)
    for arm, difference in agreement["arms"].items():
        allowed = _allowed_bound(usual, arms[arm], arms[agreement["reference"]])
        if allowed != usual:
            difference["allowed"] = {"mean": allowed.mean, "p99": allowed.p99}
        _check(allowed, usual, agreement["reference"], arm, difference)
    return agreement


def _allowed_bound(usual: PixelBound, ours: LoaderConfig, reference: LoaderConfig) -> PixelBound:
    """How far the pixels of two loaders may differ, given their decoders."""
    bounds = [usual]
    if ours.decodes_on != reference.decodes_on:
        bounds.append(NVJPEG)
    if ours.fancy_upsampling != reference.fancy_upsampling:
        bounds.append(PLAIN_UPSAMPLING)
    return PixelBound(*map(max, *bounds)) if bounds[1:] else usual


def _compare_in_process(job: dict[str, Any], cpus: Set[int]) -> Agreement:
    with MeasuringProcess(
        f"{__name__}:send_agreement", job, "agreement of the arms", cpus
    ) as process:
        return process.answer()


def _check(
    allowed: PixelBound, usual: PixelBound, reference: str, arm: str, difference: ArmDifference
) -> None:
    if not difference["same_ids"]:
        raise ArmError(f"{arm} and {reference} deliver different samples; nothing was timed")

    if others := difference.get("other_targets"):
        raise ArmError(
            f"{arm} and {reference} deliver other {' and '.join(others)}; nothing was timed"
        )

    # written so that NaN fails too
    if not (difference["mean"] <= allowed.mean and difference["p99"] <= allowed.p99):
        limits = f"max_mean_difference={usual.mean:g} and max_p99_difference={usual.p99:g}"
        if allowed != usual:
            limits += f", and these two decoders may differ by {allowed.mean:g} and {allowed.p99:g}"
        raise ArmError(
            f"{arm} and {reference} differ by {difference['mean']:.2f} of 255 in the mean "
            f"and {difference['p99']:.1f} "
            f"at the 99th percentile, more than {limits}; nothing was timed, since the "
            "work was not the same"
        )


class FirstImages(NamedTuple):
    """What an arm delivers first.

    Attributes:
        ids: the ids of its images.
        pixels: the pixels of all views of all images, flattened, from 0 to 255.
        pictures: the first images, (3, H, W) each, from 0 to 255.
        targets: the labels and targets of each batch, by name.
        is_bytes: whether the batches are uint8.
    """

    ids: torch.Tensor
    pixels: torch.Tensor
    pictures: list[torch.Tensor]
    targets: list[dict[str, bytes]]
    is_bytes: bool

    def in_steps(self, low: float, step: float) -> "FirstImages":
        """The same with values of which `low` is 0 and `step` is 1."""
        return self._replace(
            pixels=(self.pixels - low) / step,
            pictures=[(each - low) / step for each in self.pictures],
        )


def send_agreement(controller: Controller) -> None:
    controller.send(compare_arms(controller.job))


def compare_arms(job: dict[str, Any]) -> Agreement:
    """Compares the first images of every arm with those of the first arm.

    The first three images are saved in the folder `job["samples"]` as ARM_0.png …, and their
    differences times 64 as ARM_0_difference.png ….

    Returns:
        |difference| in steps of 1/255 of the pixel range: max, mean and p99 over all arms (the
        largest of each) and for each arm; same_ids; the names of other_targets; images compared;
        the reference arm.
    """
    work = Workload.from_dict(job["work"])
    loaders = {name: from_dict(config) for name, config in job["loaders"].items()}

    reference, *others = loaders
    expected = _first_images(work, loaders[reference], job["images"])
    low, step = _value_steps(expected) if work.transform is None else (0.0, 1.0)
    expected = expected.in_steps(low, step)
    folder = Path(job["samples"])
    _save(expected.pictures, folder, reference)

    arms = dict[str, ArmDifference]()
    # one arm at a time, so that only its images and those of the reference are in memory
    for name in others:
        delivered = _first_images(work, loaders[name], job["images"]).in_steps(low, step)
        _save(delivered.pictures, folder, name)

        apart = zip(delivered.pictures, expected.pictures, strict=True)
        _save(
            [(ours - theirs).abs() * AMPLIFIED for ours, theirs in apart],
            folder,
            name,
            "_difference",
        )

        same = {
            "same_ids": torch.equal(delivered.ids, expected.ids),
            "other_targets": _other_targets(delivered, expected),
        }
        arms[name] = cast(ArmDifference, difference(delivered.pixels, expected.pixels) | same)

    return {
        "max": max((arm["max"] for arm in arms.values()), default=0.0),
        "mean": max((arm["mean"] for arm in arms.values()), default=0.0),
        "p99": max((arm["p99"] for arm in arms.values()), default=0.0),
        "same_ids": all(arm["same_ids"] for arm in arms.values()),
        "images": len(expected.ids),
        "reference": reference,
        "arms": arms,
    }


def difference(images: torch.Tensor, reference: torch.Tensor) -> dict[str, float]:
    """Returns max, mean and p99 of |images - reference|, of tensors of one shape."""
    apart = (images - reference).abs_().numpy()
    return {
        "max": float(apart.max()),
        # in double precision: there may be 60 million values
        "mean": float(apart.mean(dtype=np.float64)),
        "p99": float(np.percentile(apart, 99)),
    }


def _other_targets(delivered: FirstImages, expected: FirstImages) -> list[str]:
    pairs = zip(delivered.targets, expected.targets, strict=True)
    return sorted(
        {
            name
            for ours, theirs in pairs
            for name in ours.keys() | theirs
            if ours.get(name) != theirs.get(name)
        }
    )


def _value_steps(images: FirstImages) -> tuple[float, float]:
    """The value that is black in the batches of a user's DataLoader, and 1/255 of the way to white:
    how they are normalized is not known, so their range is taken for that of the pixels.
    """
    if images.is_bytes:
        return 0.0, 1.0
    low, high = images.pixels.min().item(), images.pixels.max().item()
    return low, (high - low) / 255 or 1.0


def _first_images(work: Workload, config: LoaderConfig, count: int) -> FirstImages:
    """Loads at most `count` images, and stops at the batch that reaches `MOST_VALUES` values."""
    ids, pixels = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    pictures, targets, is_bytes = list[torch.Tensor](), list[dict[str, bytes]](), False

    def in_steps(images: torch.Tensor) -> torch.Tensor:
        return to_steps(images, work.transform) if work.transform else images.float()

    if work.manifest is None:
        # a DataLoader draws from these, and so does what from_torch makes of it
        random.seed(work.seed)
        np.random.seed(work.seed % 2**32)
        torch.manual_seed(work.seed)

    with work.arm_loader(config) as loader:
        for batch in loader:
            is_bytes = batch.images.dtype == torch.uint8
            # of the last batch only as many images as are still wanted
            left = count - len(ids)
            ids = torch.cat([ids, batch.ids[:left].cpu()])
            # a batch of one view has no `views`
            views = [
                in_steps(views[:left].cpu())
                for views in (*batch.views.values(),) or (batch.images,)
            ]
            pixels = torch.cat([pixels, *(view.flatten() for view in views)])

            if len(pictures) < SHOWN:
                pictures += in_steps(batch.images[: min(left, SHOWN)].cpu())

            # as bytes, since a target may be a tensor, a ragged one or a list
            whole = batch.to("cpu")
            targets.append(
                {
                    name: _as_bytes(value)
                    for name, value in {"labels": whole.labels, **whole.targets}.items()
                }
            )

            if len(ids) >= count or len(pixels) >= MOST_VALUES:
                break

    return FirstImages(ids, pixels, pictures[:SHOWN], targets, is_bytes)


def _as_bytes(target: Any) -> bytes:
    """Bytes that are equal for equal targets only: with dtypes, shapes and lengths."""
    if isinstance(target, Ragged):
        return repr(target.lengths).encode() + _as_bytes(target.values)
    if isinstance(target, torch.Tensor):
        return f"{target.dtype} {tuple(target.shape)}".encode() + target.numpy().tobytes()
    return repr(target).encode()


def _save(images: list[torch.Tensor], folder: Path, arm: str, suffix: str = "") -> None:
    folder.mkdir(exist_ok=True)

    for number, image in enumerate(images):
        pixels = image.round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
        from_array(pixels).save(folder / f"{arm}_{number}{suffix}.png")
