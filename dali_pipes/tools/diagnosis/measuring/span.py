"""What one measured span of work says: its speed, and where its time went.

A `Round` is one span of each part. `measure_span.py` measures them.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Span:
    """The figures of one span, all times in seconds.

    Attributes:
        images, seconds, cpu_s: images processed, elapsed time, and CPU time of this process and its
            children.
        waits_s: the time inside next(), for each step; None for a step that began an epoch, which
            starts the loader anew.
        starts_s: the time inside next() of each step that began an epoch.
        epoch: number of batches of an epoch; None: unknown.
        gaps_s: on a GPU, its idle time before each step except the first; else None.
        blocked_s: how long the step's thread neither ran nor waited for a core; None if the kernel
            does not report it.
        queued_s: how long threads of this process and its children were ready to run and had no
            core, all of them added up.
        busy: the share of our cores that was busy, whatever the program.
        throttled_s: how long a CPU quota kept us from running; None if unknown.
        memory_stall: the share of the time that something on this machine waited for memory; None
            if unknown.
        alloc_retries: how often PyTorch had to free GPU memory to find room.
    """

    images: int
    seconds: float
    cpu_s: float
    waits_s: tuple[float | None, ...]
    gaps_s: tuple[float, ...] | None
    blocked_s: float | None
    busy: float
    throttled_s: float | None
    memory_stall: float | None
    alloc_retries: int
    starts_s: tuple[float, ...] = ()
    epoch: int | None = None
    queued_s: float = 0.0

    @property
    def rate(self) -> float:
        """Images per second, as over whole epochs: a span may hold more or fewer starts of epochs
        than belong to its steps.
        """
        return self.images / len(self.waits_s) / self._usual_step_s

    @property
    def start_share(self) -> float:
        """The share of the time that goes into starting epochs: what their first batch takes longer
        than another.
        """
        starts = sum(self.starts_s) - len(self.starts_s) * self._usual_wait_s

        if self.epoch and self.starts_s:
            return max(0.0, starts / len(self.starts_s) / self.epoch / self._usual_step_s)
        # an epoch of unknown length: its starts count as often as they were seen
        return max(0.0, starts / self.seconds)

    @property
    def wait_share(self) -> float:
        """The share of the time that the steps wait for batches, without what the starts of epochs
        take.

        On a CPU it is the time inside next(). On a GPU it is at most the gaps between the steps: a
        host that has launched far ahead may wait without loss.
        """
        waited = len(self.waits_s) * self._usual_wait_s
        if self.gaps_s is not None:
            waited = min(waited, sum(self.gaps_s))
        return min(1.0, waited / len(self.waits_s) / self._usual_step_s)

    @property
    def step_s(self) -> float:
        """Seconds of a step itself, without the wait for its batch."""
        waited = sum(self.starts_s) + sum(wait for wait in self.waits_s if wait is not None)
        return (
            self.seconds - (waited if self.gaps_s is None else min(waited, sum(self.gaps_s)))
        ) / len(self.waits_s)

    @property
    def _usual_step_s(self) -> float:
        """Seconds from step to step, including each step's share of the start of its epoch."""
        steps, starts = len(self.waits_s), sum(self.starts_s)
        if not self.epoch or not self.starts_s:
            return self.seconds / steps
        # what first batches took longer than others: taken out, and put in once for as many steps
        # as an epoch has
        excess = starts - len(self.starts_s) * self._usual_wait_s
        return (self.seconds - excess) / steps + excess / len(self.starts_s) / self.epoch

    @property
    def _usual_wait_s(self) -> float:
        """Seconds that a step waits for a batch that is not the first of an epoch; 0 if there is no
        such batch.
        """
        waits = [wait for wait in self.waits_s if wait is not None]
        return sum(waits) / len(waits) if waits else 0.0

    def scaled(self, factor: float) -> "Span":
        """Returns the same work in so many times the time, for as much CPU time."""
        waits = tuple(None if wait is None else wait * factor for wait in self.waits_s)
        starts = tuple(start * factor for start in self.starts_s)
        return replace(self, seconds=self.seconds * factor, waits_s=waits, starts_s=starts)

    @property
    def cores(self) -> float:
        """How many cores were kept busy, on average."""
        return self.cpu_s / self.seconds


@dataclass(frozen=True, slots=True)
class Round:
    """One span of each part, one shortly after the other.

    Attributes:
        model: with batches that are on the device.
        loader: batches as fast as they come, nothing done with them.
        together: training.
    """

    model: Span
    loader: Span
    together: Span

    @property
    def steps(self) -> Span:
        """The model's span, at the fastest pace that was seen.

        Beside other programs a model that never waits uses up its share of the cores, and its
        threads then wait for each other. A step that follows a wait gets the cores at once: in
        training it is faster then, and that pace is taken.
        """
        factor = self.together.step_s / self.model.step_s
        return (
            replace(self.model.scaled(factor), cpu_s=self.model.cpu_s * factor)
            if 0 < factor < 1
            else self.model
        )
