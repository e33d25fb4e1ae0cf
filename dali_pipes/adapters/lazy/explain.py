"""What a lazy loader has to say of a program: `explain()`."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.adapters.lazy.compiler.executor import Executor
from dali_pipes.adapters.lazy.order import SampleOrder
from dali_pipes.adapters.lazy.parcels import Told
from dali_pipes.adapters.lazy.program import LazyProgram

_MOST_LOOKS = 20


@dataclass
class Account:
    """What has happened so far.

    Attributes:
        told: what workers have said, added up.
        batches, samples: how many came.
        kept: how many of the pictures that were opened waited until the batch was there.
        waited: how many pictures of batches waited; one may be there in several views.
        compared: of pictures that a backend made, how many were compared with the program's.
    """

    told: Told = field(default_factory=Told)
    batches: int = 0
    samples: int = 0
    kept: int = 0
    waited: int = 0
    compared: int = 0
    _heard: int = 0

    def add(self, told: Told) -> None:
        mine = self.told
        mine.opened += told.opened
        mine.seen.update(told.seen)
        for look, seconds in told.seconds.items():
            mine.seconds[look] = mine.seconds.get(look, 0.0) + seconds
        mine.compared += told.compared
        mine.compared_seconds += told.compared_seconds
        mine.again += told.again
        mine.left.update(told.left)
        if told.bad and not mine.bad:
            index, file, error = told.bad[0]
            self.say(
                f"sample {index!r} cannot be made ({file}: {error}), so another one takes its "
                "place; bad_samples lists all of these"
            )
        mine.bad += told.bad
        mine.said += [text for text in told.said if text not in mine.said]

    def say(self, text: str) -> None:
        if text not in self.told.said:
            self.told.said.append(text)

    def take_new(self) -> list[str]:
        """What was not said to the user yet."""
        new = self.told.said[self._heard :]
        self._heard = len(self.told.said)
        return new


def explain(
    account: Account,
    program: LazyProgram,
    order: SampleOrder | None,
    executor: Executor,
    epoch: int | None,
) -> list[str]:
    """
    Args:
        epoch: batches of one; None: it is not known.
    """
    told = account.told
    # a picture that the program keeps is there in many batches
    share = min(account.kept / max(told.opened, 1), 1)
    lines = [
        f"{share:.0%} of {told.opened} pictures waited until their batch came"
        if told.opened
        else "no picture was opened that waits"
    ]
    lines += executor.describe()
    left = executor.left + told.left
    lines += [f"{count} were made as noted: {why}" for why, count in left.most_common()]
    lines += _describe_looks(account, epoch)
    if program.why_arrays_are_true:
        lines.append(f"no array waits: {program.why_arrays_are_true}")
    if program.is_late:
        lines.append("collate_fn runs in the training process, on finished pictures")
    lines += _describe_numbers(program, order)
    lines += _describe_comparisons(account)
    lines += told.said
    return lines + _describe_folder(program.dataset)


def _describe_looks(account: Account, epoch: int | None) -> list[str]:
    """For each place in the program that looks at pixels, a text."""
    told, lines = account.told, []
    for look, count in told.seen.most_common(_MOST_LOOKS):
        cost, span = told.seconds.get(look, 0.0), "so far"
        if epoch and account.batches:
            cost, span = cost * epoch / account.batches, "an epoch"
        costs = f" ({cost:.2g} CPU-s {span})" if cost else ""
        lines.append(
            f"{look.place}, in {look.where}: {look.by} looks at pixels, {count} times{costs}; "
            "what it finds could be computed once, what it changes could be a step for finished "
            "batches"
        )
    return lines


def _describe_numbers(program: LazyProgram, order: SampleOrder | None) -> list[str]:
    """Which random numbers are seeded, and how far that goes."""
    if program.seed is None:
        return ["random numbers are drawn as the program draws them; seed= makes resumes exact"]
    own = program.begin().own
    names = f", {', '.join(each.path for each in own)}" if own else ""
    lines = [
        f"seeded by (seed, epoch, place): Python, NumPy, PyTorch, albumentations{names}; not "
        "generators that are made inside a sample or a stream"
    ]
    if program.makes_together:
        lines.append(
            "samples of a batch are made together (__getitems__), so the first one's place seeds "
            "all; batches of other sizes, or of other numbers of ranks, draw other numbers"
        )
    if order is None:
        lines.append(
            "a stream is seeded by (seed, epoch, worker, place), and a resume runs it from its "
            "start, with as many workers"
        )
    elif not order.is_known:
        lines.append(
            f"a resume runs {order.name} from its start, and leaves out what was delivered"
        )
    return lines


def _describe_comparisons(account: Account) -> list[str]:
    told, lines = account.told, []
    if told.compared:
        each = told.compared_seconds / told.compared
        lines.append(
            f"{told.compared} times samples were made in two copies of their process, truly and "
            f"not, and compared ({each:.2g} s each time; copies of a big data set take longer)"
        )
    if account.compared:
        lines.append(f"{account.compared} pictures of backends were compared with the program's")
    if told.again:
        lines.append(f"{told.again} batches were made once more, since a file could not be read")
    if told.bad:
        lines.append(f"another sample took the place of {len(told.bad)} that cannot be made")
    return lines


def _describe_folder(dataset: Any) -> list[str]:
    """How a folder of torchvision's can do without code for each sample."""
    kind = type(dataset)
    if f"{kind.__module__}.{kind.__name__}" != "torchvision.datasets.folder.ImageFolder":
        return []
    # here, since it needs much that a worker does not
    from dali_pipes.adapters.transforms.convert import transform_from_torch

    try:
        transform_from_torch(dataset.transform)
    except Exception:  # a step that is not known: there is nothing to propose
        return []
    return [
        "this folder's steps can all be read, so that no code has to run for a sample: "
        f"dp.build_loader(dp.Manifest.open({str(dataset.root)!r}), config, batch_size=…, "
        "transform=…) with the transform dp.transform_from_torch(dataset.transform)"
    ]
