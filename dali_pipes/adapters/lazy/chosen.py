"""Who makes the pictures, where that is left to the loader: `AutoConfig`.

DALI in its ways; or the program's own workers, so that nothing waits, and training is never slower
than it was before. How long steps take decides (backends/auto/choosing.py).
"""

import torch

from dali_pipes.adapters.lazy.compiler.executor import Executor
from dali_pipes.adapters.lazy.program import LazyProgram
from dali_pipes.backends.auto.choices import LoaderChoice, list_choices
from dali_pipes.backends.auto.chooser import Chooser
from dali_pipes.backends.auto.clock import StepClock
from dali_pipes.backends.auto.config import AutoConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.errors import ConfigError


class ChosenMaker:
    """Chooses who makes the pictures, from one batch to the next.

    Args:
        config: its options.
        ahead: how many works the executor reads ahead.
        fetched: how many batches workers fetch ahead of these.
        epoch: batches of one; None: nobody knows.

    Raises:
        ConfigError: no backend can be had.
    """

    def __init__(
        self,
        config: AutoConfig,
        executor: Executor,
        program: LazyProgram,
        device: torch.device,
        ahead: int,
        fetched: int,
        epoch: int | None,
    ):
        cores = config.on_cores().num_threads or 1
        choices = [
            choice._replace(ahead=ahead + 1)
            for choice in list_choices(cores, device)
            # a share for the CPU is chosen by what a scan has read
            if isinstance(choice.config, DaliConfig) and not choice.config.cpu_share
        ]
        choices.append(LoaderChoice("the program itself", None, ahead + fetched + 1))
        self.chooser = Chooser(choices, cores, epoch, config.fixed)
        self._executor, self._program = executor, program
        self._may_fail = not config.fixed
        self._clock = StepClock(device) if self.chooser.measures else None
        self._is_first = True  # the next batch, of an epoch
        self._under_way = 0  # batches that another one has begun
        self._used = ""  # what the executor has, or had last
        self._is_released = True  # no backend is there
        self._use()

    def _use(self) -> None:
        """Has the present choice make what is not begun yet."""
        while (choice := self.chooser.current).config is not None:
            try:
                self._executor.use(choice.config, may_fail=self._may_fail)
                self._used = choice.name
                break
            except ConfigError as error:
                if not self.chooser.fail(choice.name, str(error)):
                    raise
        self._is_released = choice.config is None and self._is_released
        self._program.pause(choice.config is None)

    def begin(self) -> None:
        """An epoch begins, whose first batch waits for workers to start."""
        self._is_first, self._under_way = True, 0

    def ask(self) -> None:
        """Before a batch is waited for."""
        if self._clock:
            self._clock.ask()

    def came(self) -> None:
        """When it is there."""
        why, self._executor.unusable = self._executor.unusable, ""
        if why and self.chooser.fail(self._used, why):
            self._use()
        if self._clock is None:
            return
        is_first, self._is_first = self._is_first, False
        if is_first:
            self._clock.begin()
            return
        step, before = self._clock.came(), self.chooser.current
        if self._under_way:
            self._under_way -= 1
            self.chooser.pass_over(step)
        elif self.chooser.add(step):
            self._under_way = max(before.ahead, self.chooser.current.ahead)
            self._use()
        elif self.chooser.choosing.is_decided and before.config is None and not self._is_released:
            self._executor.release()
            self._is_released = True

    def go_on_with(self, learned: str) -> None:
        """Begins with what an earlier loader had found."""
        if learned != str(self.chooser):
            self.chooser.go_on_with(learned)
            self._use()
