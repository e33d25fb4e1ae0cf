"""Which loader of a list is next, by name, and what is said of it."""

import logging
from collections.abc import Sequence

from dali_pipes.backends.auto.choices import Choice
from dali_pipes.backends.auto.choosing import Choosing, Step

log = logging.getLogger(__name__)


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
    """

    def __init__(self, choices: Sequence[Choice], cores: int, epoch: int | None, is_fixed: bool):
        self.choices, self._is_fixed = choices, is_fixed
        self.choosing = Choosing(
            [choice.ahead for choice in choices],
            cores,
            epoch,
            [number for number, choice in enumerate(choices) if choice.takes_device],
        )
        self._was_decided, self.said = False, ""

    @property
    def current(self) -> Choice:
        """The loader of the next batches."""
        return self.choices[self.choosing.current]

    def add(self, step: Step) -> bool:
        """One step more; whether another loader makes the next batches."""
        if self._is_fixed:
            return False
        before = self.choosing.current
        is_another = self.choosing.add(step) != before
        self._tell()
        return is_another

    def pass_over(self, step: Step) -> None:
        """One step more, of a batch that was under way when another loader was chosen."""
        self.choosing.pass_over(step)

    def fail(self, why: str) -> bool:
        """Says that the present loader cannot be had; whether there is another one."""
        if len(self.choosing.why) == len(self.choices) - 1:
            return False
        self.choosing.fail(self.choosing.current, why)
        return True

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
        others += [f"{names[each]} cannot be used ({why})" for each, why in choosing.why.items()]
        text = names[choosing.leader]
        if mine := choosing.tried.get(choosing.leader):
            text += f", {1e3 * mine.period:.1f} ms a step, {mine.waits:.1%} waiting"
        return text + (f"; tried {', '.join(others)}" if others else "")

    def describe(self) -> str:
        """The loader that makes the batches, and what was tried."""
        if self.said:
            return f"auto has chosen {self.said}"
        return f"auto begins with {self._describe()}"

    # between two runs

    @property
    def learned(self) -> str:
        """The name of the best loader so far."""
        return self.choices[self.choosing.leader].name

    def go_on_with(self, learned: str) -> bool:
        """Begins with the loader of this name; whether that is another one than before."""
        names = [choice.name for choice in self.choices]
        if learned not in names or learned == self.learned:
            return False
        self.choosing.go_on_with(names.index(learned))
        return True
