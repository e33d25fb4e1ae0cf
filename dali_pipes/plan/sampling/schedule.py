"""Several samplings, one after the other."""

from dataclasses import dataclass, field, replace
from typing import Any, Self

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import Mention, OptionError
from dali_pipes.options import check_options
from dali_pipes.plan.order import Order
from dali_pipes.plan.sampling.base import Sampling, parse_sampling


@dataclass(kw_only=True, slots=True)
class Schedule(Sampling):
    """One sampling after the other.

    Attributes:
        schedule: maps an epoch to the sampling from then on, the first to that of epoch 0: {0:
            "balanced", 10: "uniform"}; with options it is {"name": "weighted", "weights": "loss"},
            or a Sampling. All have epochs of the same size.
    """

    schedule: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_options(self)
        # an epoch may be text: JSON has only strings as keys
        phases = {
            int(epoch): sampling
            for epoch, sampling in self.schedule.items()
            if str(epoch).isdecimal()
        }
        if 0 not in phases or len(phases) < len(self.schedule):
            raise OptionError(
                Schedule,
                f"schedule is {self.schedule}; it takes epochs and samplings, and begins with "
                "that of epoch 0, such as ",
                Mention(Schedule, "schedule", {0: "balanced", 10: "uniform"}),
            )

        self.schedule = {epoch: self._parse_phase(phases[epoch]) for epoch in sorted(phases)}

    def _parse_phase(self, value: Any) -> Sampling:
        sampling = parse_sampling(value)
        if isinstance(sampling, Schedule):
            raise OptionError(
                Schedule, "schedule has a schedule within a schedule; put all epochs into one"
            )
        return (
            sampling
            if sampling.epoch_size or not self.epoch_size
            else replace(sampling, epoch_size=self.epoch_size)
        )

    def on_machine(self) -> Self:
        phases = {since: phase.on_machine() for since, phase in self.schedule.items()}
        return replace(self, schedule=phases)

    def explain(self) -> str:
        explained = {since: phase.explain() for since, phase in self.schedule.items()}
        return "; ".join(
            f"from epoch {since} on {text}" for since, text in explained.items() if text
        )

    def orders(self, manifest: Manifest, seed: int, global_batch_size: int) -> dict[int, Order]:
        orders: dict[int, Order] = {}
        states = {since: phase.state(manifest) for since, phase in self.schedule.items()}
        for since, phase in self.schedule.items():
            # phases that are alike share an order, and so the memory that it needs
            alike = (orders[epoch] for epoch in orders if states[epoch] == states[since])
            orders[since] = next(alike, None) or phase.order(manifest, seed, global_batch_size)

        # a plan has one epoch size, that of epoch 0
        sizes = {since: order.epoch_size for since, order in orders.items()}
        if len(set(sizes.values())) > 1:
            raise OptionError(
                Schedule,
                f"schedule has epochs of different sizes, {sizes}; set epoch_size to a multiple "
                f"of the global batch of {global_batch_size}",
            )

        return orders

    def order(self, manifest: Manifest, seed: int, global_batch_size: int) -> Order:
        return self.orders(manifest, seed, global_batch_size)[0]

    def state(self, manifest: Manifest) -> dict[str, Any]:
        return {"kind": "Schedule"} | {
            str(since): phase.state(manifest) for since, phase in self.schedule.items()
        }
