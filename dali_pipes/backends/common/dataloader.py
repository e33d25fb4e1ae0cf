"""What the workers of PyTorch's DataLoader need besides what PyTorch does: they leave Ctrl-C to the
main process, and end early, which PyTorch itself leaves incomplete.
"""

import signal
from typing import Any

_ENDS_WITHIN_S = 5.0


def end_workers(iterator: Any) -> None:
    """Ends the worker processes of a DataLoader's iterator, if it has any, and closes their files.

    They would end by themselves when the iterator is collected, which a traceback can delay for
    long. If memory is page-locked and workers are persistent, PyTorch registers every worker with
    atexit (torch/utils/data/dataloader.py, `_clean_up_worker`; issue 91252). Then a worker is never
    collected, and its two pipes stay open until the program ends.
    """
    if not hasattr(iterator, "_shutdown_workers"):
        return

    iterator._shutdown_workers()
    for worker in iterator._workers:
        # a worker that did not end by itself was terminated, but nobody has waited for it since
        worker.join(_ENDS_WITHIN_S)
        if not worker.is_alive() and hasattr(worker, "_popen"):
            # not worker.close(): at exit the registered function joins the worker once more, which
            # raises an error if the worker is closed
            worker._popen.close()


def leave_ctrl_c_to_the_main_process(worker: int) -> None:
    """Makes a worker ignore SIGINT.

    A terminal sends it to all processes of a program, and a training run still finishes its step
    and saves.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
