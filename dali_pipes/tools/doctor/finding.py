"""The result of a check."""

from dataclasses import dataclass

OK, WARNING, FAILED = "ok", "warning", "failed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor.

    Attributes:
        status: "ok"; "warning": training on a GPU can work, with a drawback or in doubt; "failed": it cannot.
        found: the state that the check found.
        remedy: what to do; empty if the status is "ok".
    """

    status: str
    found: str
    remedy: str = ""

    def __post_init__(self) -> None:
        if self.status not in (OK, WARNING, FAILED) or (self.status == OK) == bool(self.remedy):
            raise ValueError(f"{self}: a status is ok, warning or failed, and all but ok say what to do")


def ok(found: str) -> Finding:
    return Finding(OK, found)


def warning(found: str, remedy: str) -> Finding:
    return Finding(WARNING, found, remedy)


def failed(found: str, remedy: str) -> Finding:
    return Finding(FAILED, found, remedy)


"""Bytes for people."""


def size(count: float) -> str:
    """Bytes as the largest binary unit that leaves at least 1 of it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if count >= 100 or unit == "B" else f"{count:,.1f} {unit}"
