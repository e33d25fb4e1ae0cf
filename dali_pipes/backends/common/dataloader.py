"""What PyTorch's DataLoader leaves to whoever ends its workers early."""

from typing import Any

_ENDS_WITHIN_S = 5.0


def end_workers(iterator: Any) -> None:
    """Ends the worker processes of a DataLoader's iterator, if it has any, and closes their files.

    They would end by themselves when the iterator is collected, which a traceback can hold for
    long. Where memory is page-locked and workers are persistent, PyTorch registers every worker
    with atexit (torch/utils/data/dataloader.py, `_clean_up_worker`; issue 91252), so that it is
    never collected, and its two pipes stay open until the program ends.
    """
    if not hasattr(iterator, "_shutdown_workers"):
        return
    iterator._shutdown_workers()
    for worker in iterator._workers:
        # one that has not ended by itself was terminated, and has not been waited for since
        worker.join(_ENDS_WITHIN_S)
        if not worker.is_alive() and hasattr(worker, "_popen"):
            # not worker.close(): what is registered joins the worker once more at exit, which a
            # closed one refuses with an error
            worker._popen.close()
