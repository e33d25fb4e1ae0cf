"""Makes the order of the next epoch while the present one is loaded, so that the next epoch's first
batch does not wait for it.
"""

import threading
from collections.abc import Iterator
from contextlib import suppress

from dali_pipes.plan.plan import Plan, PlannedBatch
from dali_pipes.system.interrupts import delayed_signals


def with_order_ahead(planned: Iterator[PlannedBatch], plan: Plan) -> Iterator[PlannedBatch]:
    """Yields the same planned batches. At the first one of each epoch, a thread begins to make the
    order of the next epoch.
    """
    epoch = -1
    for batch in planned:
        if batch.epoch != epoch:
            epoch = batch.epoch
            thread = threading.Thread(target=_make, args=(plan, epoch + 1), name="next order")
            # a thread that is interrupted while it starts may wait forever, and the program's end
            # waits for it
            with delayed_signals():
                thread.start()
        yield batch


def _make(plan: Plan, epoch: int) -> None:
    # an error comes once more where the order is used, and is raised there
    with suppress(Exception):
        plan.make_order(epoch)
