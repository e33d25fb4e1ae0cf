"""Modules for FreshProcess: what they do is their job's "do"."""

import multiprocessing
import os
import sys
import time

from dali_pipes.errors import DaliPipesError
from dali_pipes.measure.worker_process import serve


def run(controller):
    match controller.job["do"]:
        case "environment":
            print("a library's chatter")
            controller.send({"cpus": sorted(os.sched_getaffinity(0)), "threads": os.environ["OMP_NUM_THREADS"]})
        case "wait":
            controller.send({"ready": True})
            controller.send({"gone": controller.go()})
            controller.stop.wait()
        case "fork":
            worker = multiprocessing.get_context("fork").Process(target=int)
            worker.start()
            worker.join()
            controller.send({"exitcode": worker.exitcode})
        case "raise":
            raise DaliPipesError("the file is broken")
        case "crash":
            sys.exit("last words")
        case "sleep":
            time.sleep(60)


if __name__ == "__main__":
    serve(run)
