"""Which loader of a list is next, by name, and what is said of it."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dali_pipes.backends.auto.choices import LoaderChoice
from dali_pipes.backends.auto.choosing import Choosing, StepTime

log = logging.getLogger(__name__)

_MOST_FAILURES = 2


class Chooser:
    """Chooses one of several loaders from how long steps take, and says so.

    Args:
        choices: the likeliest first.
        cores: that the process may use.
        epoch: batches of an epoch; None: it has no end, or nobody knows.
        is_fixed: keeps the first.

    Attributes:
        choosing: what decides, by their places in the list.
        said: what was decided last; "": nothing yet.
        pixels: what has made the pixels so far, if their last bits can depend on it.
        shapes: of the images that are made now.
    """

    def __init__(
        self, choices: Sequence[LoaderChoice], cores: int, epoch: int | None, is_fixed: bool
    ):
        self.choices, self._is_fixed = choices, is_fixed
        self.choosing = Choosing(
            [choice.ahead for choice in choices],
            cores,
            epoch,
            [number for number, choice in enumerate(choices) if choice.takes_device],
        )
        self._was_decided, self.said = False, ""
        self._failures = Counter[int]()
        self.pixels: list[str] = []
        self.shapes: Any = None

    @property
    def current(self) -> LoaderChoice:
        """The loader of the next batches."""
        return self.choices[self.choosing.current]

    @property
    def measures(self) -> bool:
        """Whether there is anything to find out."""
        return not self._is_fixed and len(self.choosing.why) < len(self.choices) - 1

    def add(self, step: StepTime) -> bool:
        """One step more; whether another loader makes the next batches."""
        before = self.choosing.current
        is_another = self.choosing.add(step) != before
        self._tell()
        return is_another

    def pass_over(self, step: StepTime) -> None:
        """One step more, of a batch that was under way when another loader was chosen."""
        self.choosing.pass_over(step)

    def fail(self, name: str, why: str) -> bool:
        """Says that the loader of this name cannot be had; whether there is another one."""
        number = self._number_of(name)
        if len(self.choosing.why.keys() | {number}) == len(self.choices):
            return False
        log.warning("auto: %s cannot be used: %s", name, why)
        self.choosing.fail(number, why)
        return True

    def broke(self, name: str, error: BaseException) -> bool:
        """Says that the loader of this name failed while it began or made a batch. One that is
        being tried is put off, or after the second time left out. Returns whether it was such a
        one.
        """
        number = self._number_of(name)
        if number == self.choosing.leader or number in self.choosing.why:
            return False  # a file may be broken, which the loader finds out
        self._failures[number] += 1
        if self._failures[number] == _MOST_FAILURES:
            self.choosing.fail(number, f"it failed: {type(error).__name__}: {error}")
        else:
            self.choosing.put_off(number)
        return True

    def lose(self, seconds: float) -> None:
        """So long training has waited for a loader to be built."""
        self.choosing.lost += seconds

    def _number_of(self, name: str) -> int:
        return [choice.name for choice in self.choices].index(name)

    def _tell(self) -> None:
        """Says once what was decided."""
        was_decided, self._was_decided = self._was_decided, self.choosing.is_decided
        if self._was_decided and not was_decided:
            self.said = self._describe()
            log.info("auto: %s", self.said)

    def _describe(self) -> str:
        choosing, names = self.choosing, [choice.name for choice in self.choices]
        others = [
            f"{names[each]} {1e3 * known.period:.1f} ms a step, {known.waits:.1%} waiting"
            for each, known in choosing.tried.items()
            if each != choosing.leader
        ]
        text = names[choosing.leader]
        if mine := choosing.tried.get(choosing.leader):
            text += f", {1e3 * mine.period:.1f} ms a step, {mine.waits:.1%} waiting"
            text += f"; tried {', '.join(others)}" if others else "; nothing else was tried"
        failed = [f"{names[each]} cannot be used ({why})" for each, why in choosing.why.items()]
        return "; ".join([text, *failed])

    def describe(self) -> str:
        """The loader that makes the batches, and what was tried."""
        if self.said:
            return f"auto has chosen {self.said}"
        return f"auto begins with {self._describe()}"

    # between two runs

    def __str__(self) -> str:
        return self.choices[self.choosing.leader].name

    def begin_again(self) -> None:
        """Steps take another time from now on."""
        self.go_on_with(str(self))

    def go_on_with(self, learned: str) -> None:
        """Begins with the loader of this name, if it can be had."""
        names = [choice.name for choice in self.choices]
        if learned in names and names.index(learned) not in self.choosing.why:
            self.choosing.go_on_with(names.index(learned))
            self._was_decided, self.said = False, ""
