"""The workers of PyTorch's DataLoader end, and what this process held of them is closed."""

import pytest
from torch.utils.data import DataLoader, Dataset

from dali_pipes.backends.torch.workers import end_workers

MORE_THAN_A_PIPE_HOLDS = 1 << 18


class Large(Dataset[bytes]):
    """Its samples fill the pipe through which a worker sends them."""

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return bytes(MORE_THAN_A_PIPE_HOLDS)


class Small(Dataset[int]):
    def __len__(self):
        return 64 * MORE_THAN_A_PIPE_HOLDS

    def __getitem__(self, index):
        return 0


class LargeBatches:
    """The indices of its batches fill the pipe through which a worker receives them."""

    def __iter__(self):
        return iter([range(64)] + [[*range(MORE_THAN_A_PIPE_HOLDS)]] * 8)


def first(batch):
    return batch[0]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_end_while_they_send_leave_no_file_open(persistent):
    options = {"num_workers": 2, "persistent_workers": persistent, "collate_fn": first}
    iterator = iter(DataLoader(Large(), batch_size=1, **options))
    next(iterator)
    results = iterator._worker_result_queue
    # what PyTorch sends where memory is page-locked, before it ends its workers
    results.put((None, None))
    end_workers(iterator)
    assert not results._thread.is_alive()
    assert results._reader.closed and results._writer.closed
    end_workers(iterator)  # a second time does nothing


def test_batches_that_no_worker_reads_any_more_leave_no_file_open():
    iterator = iter(
        DataLoader(Small(), batch_sampler=LargeBatches(), num_workers=2, collate_fn=first)
    )
    next(iterator)
    end_workers(iterator)
    for queue in iterator._index_queues:
        assert not queue._thread.is_alive()
        assert queue._reader.closed and queue._writer.closed
