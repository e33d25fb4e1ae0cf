"""A program like `benchmark restart=false`: it suspends a child that has a worker, prints their
pids, and waits.
"""

import json
import multiprocessing
import signal
import sys
import threading
import time

import psutil

from dali_pipes.measure.worker_process import MeasuringProcess, exit_on_signals


def work(controller):
    """In the child: a worker of every kind, of which none ends by itself."""
    kind = controller.job
    worker = multiprocessing.get_context(kind).Process(target=time.sleep, args=(600,), daemon=True)
    worker.start()
    controller.send({"worker": worker.pid})
    controller.go()


def measure(kind: str, held: list[MeasuringProcess]) -> None:
    child = MeasuringProcess("suspending_parent:work", kind, "arm", {0})
    held.append(child.__enter__())
    child.answer()
    children = psutil.Process().children(recursive=True)
    child.sleep()
    print(json.dumps([each.pid for each in children]), flush=True)


if __name__ == "__main__":
    # tests that are run under nohup hand down that it is ignored
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    kept: list[MeasuringProcess] = []
    with exit_on_signals():
        # which ends before the measurement does
        thread = threading.Thread(target=measure, args=(sys.argv[1], kept))
        # a signal may come before the thread that printed the pids has ended
        try:
            thread.start()
            thread.join()
            time.sleep(600)
        finally:
            for each in kept:
                each.__exit__(*sys.exc_info())
