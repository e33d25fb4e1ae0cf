"""What is said of a DataLoader: whether it converts, and what carries out each of its steps."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from torch.utils.data import DataLoader

from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.from_torch.reading import NotConvertibleError, Step
from dali_pipes.measure.users_loader import print_steps
from dali_pipes.system.child import explain as in_one_line
from dali_pipes.system.stdout import say


@dataclass(kw_only=True, slots=True)
class LoaderReport:
    """What became of one DataLoader.

    Attributes:
        text: what it is, in words.
        steps: its steps, and what carries out each.
        refusal: why it cannot be carried over; "" if it can.
        compared: what the comparison with the old loader has shown; "" if there was none.
        unmeasured: what the A/B leaves out (`Conversion.unmeasured`).
    """

    text: str
    steps: list[Step] = field(default_factory=list)
    refusal: str = ""
    compared: str = ""
    unmeasured: str = ""

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "LoaderReport":
        return cls(**{**value, "steps": [Step(**step) for step in value["steps"]]})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def print(self, console: Console, heading: str) -> None:
        console.print()
        say(console, f"{heading}{self.text}")
        print_steps(self.steps, console)
        if self.refusal:
            say(console, f"It stays as it is: {self.refusal}")
        elif self.compared:
            say(console, f"Compared with your loader: {self.compared}.")


def convert(
    loader: Any, cache_dir: str | Path | None = None
) -> tuple[LoaderReport, Conversion | None]:
    """Returns what can be said of a DataLoader, and how it is converted; None: it is not."""
    report = LoaderReport(text=describe(loader))
    try:
        conversion = Conversion.of(loader, cache_dir)
    except NotConvertibleError as error:
        report.steps, report.refusal = [*error.steps], str(error)
        return report, None

    report.steps, report.unmeasured = [*conversion.steps], conversion.unmeasured
    return report, conversion


def describe(loader: Any) -> str:
    """Returns what a DataLoader is, in words."""
    kind, inner = type(loader).__name__, getattr(loader, "loader", loader)
    if not isinstance(inner, DataLoader):
        return f"a {kind}"
    dataset = inner.dataset
    try:
        count = f"{len(dataset):,} samples"  # type: ignore[arg-type]
    except Exception:  # an IterableDataset has no length, and one of the user's may do anything
        count = "samples"
    batches = f", batches of {inner.batch_size}" if inner.batch_size else ""
    return f"a {kind} of {count} of {type(dataset).__name__}{batches}"


def describe_failure(error: Exception) -> str:
    return f"from_torch failed with {in_one_line(error)}: a fault of dali_pipes; please report it"
