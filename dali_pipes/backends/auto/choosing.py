"""Which of several loaders trains fastest: tries them in turn, and stops when it is known.

The first `FIRST` steps are those of the likeliest one. If training hardly waits, and the CPU has
something left, nothing is tried. Else each other one gets a *turn*, for as many steps as it takes
to tell a difference of `TELLS`; the better of the two goes on. Turns of the one that leads come
between, so that both are measured under what the machine does at that time.

Of each turn the second half counts: before that, a queue is filled or used up. Steps come in
bursts, and what the machine does besides lasts for many of them, so a turn is cut into `BLOCKS`
parts, and the spread of their means is the noise.
"""

import math
from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

FIRST = 50  # steps before anything is decided
LEAST = 20  # steps of a turn
MOST = 320  # steps of a turn, after which two are taken for equal
EVERY = 10  # steps between two looks at a turn
BLOCKS = 5
WAITS = 0.01  # a share of the time that training may wait
IS_BUSY = 0.85  # a share of the cores, from which on a loader that needs less may train faster
TELLS = 0.02  # a difference of two periods, as a share
SURE = 2.8  # standard errors: 95 %, of five blocks
MOST_LOST = 0.015  # of the time of an epoch: what trials may lose in all
STARTS = 1.0  # seconds in which another one begins to work, about
WAITS_MORE = 0.05  # by how much the share has to grow to look again
CHANGES = 0.1  # or by how much the period has to be another one, if training waits
CHEAPER = 0.9  # CPU seconds of one that is preferred among equals


class StepTime(NamedTuple):
    """Of one batch.

    Attributes:
        period: seconds since the batch before, without pauses of the training.
        waited: how many of these training had to wait for it.
        cpu: CPU seconds of the process and all of its children in that time, about.
    """

    period: float
    waited: float
    cpu: float


class Turn:
    """Some steps in a row of one loader."""

    def __init__(self, choice: int):
        self.choice = choice
        self.steps: list[StepTime] = []

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: StepTime) -> None:
        self.steps.append(step)

    @property
    def _measured(self) -> Sequence[StepTime]:
        return self.steps[len(self) // 2 :]

    @property
    def period(self) -> float:
        """Seconds of a step."""
        seconds = sum(step.period for step in self._measured) / len(self._measured)
        return max(seconds, 1e-9)  # by a coarse clock it may be 0

    @property
    def noise(self) -> float:
        """The standard error of the period, as a share of it."""
        periods = np.array([step.period for step in self._measured])
        means = [part.mean() for part in np.array_split(periods, BLOCKS)]
        return float(np.std(means, ddof=1) / math.sqrt(BLOCKS) / self.period)

    @property
    def waits(self) -> float:
        """The share of its time that training waits."""
        return sum(step.waited for step in self._measured) / (self.period * len(self._measured))

    @property
    def cpu(self) -> float:
        """CPU seconds of a step."""
        return sum(step.cpu for step in self._measured) / len(self._measured)


class Tried(NamedTuple):
    """What is known of a loader.

    Attributes:
        period, cpu: seconds of a step.
        waits: the share of its time that training waits.
    """

    period: float
    cpu: float
    waits: float


class Choosing:
    """Says after each step which loader is to make the next ones.

    Args:
        ahead: of each choice, how many batches it makes ahead; the first is the likeliest one.
        cores: that the process may use.
        epoch: steps of an epoch; None: it has no end.
        takes_device: choices that work on the device that trains, which they may slow down without
            letting it wait.

    Attributes:
        current: the choice that makes the steps.
        leader: the best choice so far.
        tried: what is known of each that was tried to the end.
        is_decided: whether nothing is being tried.
        why: why some cannot be had, by choice.
        lost: seconds that trials have taken in all.
    """

    def __init__(
        self,
        ahead: Sequence[int],
        cores: int,
        epoch: int | None,
        takes_device: Collection[int] = (),
    ):
        self._ahead = ahead
        self._cores, self._epoch, self._takes_device = cores, epoch, takes_device
        self.current = self.leader = 0
        self.tried: dict[int, Tried] = {}
        self.why: dict[int, str] = {}
        self._others = list(range(1, len(ahead)))  # the likely ones first
        self._left: list[int] = []  # to be tried in this round
        self._needs = dict.fromkeys(range(len(ahead)), STARTS)  # seconds that a trial may take
        self._turn, self._of_leader = Turn(0), Turn(0)
        self._steps = self._decided_at = 0
        # seconds; how many these may be after the present trial, and were before it
        self.lost = self._limit = self._lost_before = 0.0
        self._trial: int | None = None  # what is being tried, in turns
        self._round_at = 0  # the step from which on the trials of this round have their time
        self._is_trying = self.is_decided = False
        self._length = 2 * LEAST  # of the present turns

    def go_on_with(self, choice: int) -> None:
        """Begins anew with this one."""
        self._others = [each for each in (self.leader, *self._others) if each != choice]
        self._left, self._trial, self._is_trying, self.is_decided = [], None, False, False
        self.leader = choice
        self._begin(choice)

    def fail(self, choice: int, why: str) -> None:
        """Says that one cannot be had."""
        self.why[choice] = why
        self._others = [each for each in self._others if each != choice]
        self._left = [each for each in self._left if each != choice]
        if self.leader == choice:
            self.leader = self._others.pop(0)
            self._is_trying = self.is_decided = False
        if self.current == choice:
            self._begin(self.leader)

    def put_off(self, choice: int) -> None:
        """Ends the trial of one, which is tried again after the others."""
        if choice in self._left:
            self._left.remove(choice)
            self._left.append(choice)
        self._trial = None
        self._begin(self.leader)

    def add(self, step: StepTime) -> int:
        """Returns the choice of the next steps, after one step more."""
        self._steps += 1
        turn = self._turn
        turn.add(step)
        if self._is_trying:
            self._lose(step)
        if turn.choice != self.leader:
            if self.lost > self._limit or len(turn) % EVERY == 0:
                self._judge(turn)
        elif len(turn) % EVERY == 0:
            least = max(self._length, self._least(self.leader)) if self._is_trying else FIRST
            if len(turn) >= least:
                self._look(turn)
        return self.current

    def pass_over(self, step: StepTime) -> None:
        """One step more, of batches that were under way when another choice was made."""
        self._steps += 1
        self._lose(step)

    def _lose(self, step: StepTime) -> None:
        if len(self._of_leader):
            self.lost = max(self.lost + step.period - self._of_leader.period, 0.0)

    def _look(self, turn: Turn) -> None:
        """Looks at the leader's turn: whether something is to be tried now."""
        known = self._note(turn)
        self._of_leader = turn
        if not self._is_trying:
            if self.is_decided and not self._has_changed(known) and not self._left:
                if len(turn) >= 4 * FIRST:  # what was long ago says nothing of now
                    self._turn = Turn(turn.choice)
                return
            is_busy = known.cpu > IS_BUSY * self._cores * known.period
            is_free = known.waits < WAITS and not is_busy
            if is_free and self.leader not in self._takes_device:
                self._left = []
            elif not self._left:
                self._left, self.lost, self._round_at = list(self._others), 0.0, self._steps
        affordable = [
            each for each in self._left if self.lost + self._needs[each] <= self._may_lose
        ]
        if not affordable:
            self._decide()
            return
        self._is_trying, self.is_decided = True, False
        if self._trial != affordable[0]:
            self._trial, self._lost_before = affordable[0], self.lost
        self._limit = (self.lost + self._may_lose) / 2  # the rest is for others
        self._begin(affordable[0])

    def _has_changed(self, known: Tried) -> bool:
        """Whether training waits more than when it was decided, an epoch ago or longer; or still
        waits in steps of another length, such as after an epoch that has filled the page cache.
        """
        if self._steps - self._decided_at < (self._epoch or MOST):
            return False
        is_other = abs(math.log(known.period / self._decided.period)) > CHANGES
        has_grown = known.waits > self._decided.waits + WAITS_MORE
        return has_grown or (is_other and known.waits >= WAITS)

    def _judge(self, turn: Turn) -> None:
        """Ends the turn of another one than the leader, as soon as both can be told apart. Where
        they cannot, both get turns of twice the length.
        """
        leader = self._of_leader
        apart = math.log(turn.period / leader.period)
        if self.lost > self._limit and apart > 0:
            # it is tried again when there is time for twice as much
            self._needs[turn.choice] = max(2 * (self.lost - self._lost_before), STARTS)
            self.put_off(turn.choice)
            return
        if len(turn) < self._least(turn.choice):
            # twice as slow is no question of noise, once its queue has been filled
            if apart > math.log(2) and len(turn) >= EVERY:
                self._reject(turn)
            return

        margin = SURE * math.hypot(turn.noise, leader.noise)
        if apart + margin < 0:
            self._lead(turn)
        elif apart - margin > 0:
            self._reject(turn)
        elif margin < TELLS or len(turn) >= MOST:
            cheaper = self._note(turn).cpu < CHEAPER * self.tried[self.leader].cpu
            self._lead(turn) if cheaper else self._reject(turn)
        elif len(turn) >= max(self._length, self._least(turn.choice)):
            self._length *= 2
            self._begin(self.leader)

    def _reject(self, turn: Turn) -> None:
        self._note(turn)
        self._end_trial(turn)
        self._begin(self.leader)

    def _end_trial(self, turn: Turn) -> None:
        self._left.remove(turn.choice)
        self._needs[turn.choice], self._length, self._trial = STARTS, 2 * LEAST, None

    def _lead(self, turn: Turn) -> None:
        """Makes the one whose turn it is the leader."""
        self._end_trial(turn)
        self._others = [self.leader, *(each for each in self._others if each != turn.choice)]
        self.leader = turn.choice
        self._look(turn)

    def _least(self, choice: int) -> int:
        """Steps of a turn, in whose second half no queue is used up any more that was full."""
        return max(LEAST, 3 * self._ahead[choice])

    def _begin(self, choice: int) -> None:
        self.current, self._turn = choice, Turn(choice)

    def _decide(self) -> None:
        self._is_trying, self.is_decided = False, True
        self._decided_at, self._decided = self._steps, self.tried[self.leader]
        self._begin(self.leader)

    def _note(self, turn: Turn) -> Tried:
        known = self.tried[turn.choice] = Tried(turn.period, turn.cpu, turn.waits)
        return known

    @property
    def _may_lose(self) -> float:
        """Seconds that the trials of a round may lose in all."""
        steps = max(self._epoch or 0, self._steps - self._round_at)
        return MOST_LOST * steps * self._of_leader.period
