"""A function for Child: what it does is its job's "do"."""

import multiprocessing
import os
import sys
import time

from dali_pipes.errors import DaliPipesError


def run(controller):
    match controller.job["do"]:
        case "environment":
            print("a library's chatter")
            gpu = os.environ.get("CUDA_VISIBLE_DEVICES")
            controller.send(
                {
                    "cpus": sorted(os.sched_getaffinity(0)),
                    "threads": os.environ["OMP_NUM_THREADS"],
                    "gpu": gpu,
                }
            )
        case "wait":
            controller.send({"ready": True})
            controller.send({"gone": controller.go()})
            controller.stop.wait()
        case "fork":
            worker = multiprocessing.get_context("fork").Process(target=int)
            worker.start()
            worker.join()
            controller.send({"exitcode": worker.exitcode})
        case "workers":
            workers = [
                multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
                for _ in range(2)
            ]
            for each in workers:
                each.start()
            controller.send({"pids": [os.getpid(), *(each.pid for each in workers)]})
            controller.stop.wait()
            os._exit(0)  # and leaves them behind
        case "raise":
            raise DaliPipesError("the file is broken")
        case "crash":
            sys.exit("last words")
        case "sleep":
            time.sleep(60)
