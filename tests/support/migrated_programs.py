"""Programs that migrate watches, each in a fork of one process that has imported what they need.

A job with "patched" runs a program after the change: `from_torch` is a recorder there, and the
answer says by which loaders the program's loops were fed, in order.
"""

import json
import os
import sys
import traceback
from pathlib import Path


def serve():
    import torch
    import torchvision  # noqa: F401

    import dali_pipes.backends.torch.backend
    import dali_pipes.loader.build
    import dali_pipes.measure.workload
    import dali_pipes.tools.migration.report  # noqa: F401
    from dali_pipes.system.program import frames
    from dali_pipes.tools.migration import watched

    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1).step()  # imports the compiler
    for line in sys.stdin:
        job = json.loads(line)
        reading, job["pipe"] = os.pipe()
        child = os.fork()
        if not child:
            os.chdir(job.pop("folder_of_program"))
            frames.START_FOLDER = Path.cwd()
            output = os.open("output", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
            os.dup2(output, 1), os.dup2(output, 2)
            if "patched" in job:
                run_patched(job)
            watched.run_and_measure(Parent(job))
        os.close(job["pipe"])
        with open(reading) as lines:
            answers = [json.loads(each) for each in lines]
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps({"answers": answers, "status": status}), flush=True)


class Parent:
    """What the process of a program sees of its parent, which asks for no trial."""

    def __init__(self, job):
        self.job, self.pipe = job, open(job["pipe"], "w")  # noqa: SIM115

    def send(self, answer):
        print(json.dumps(answer), file=self.pipe, flush=True)

    def go(self):
        return False


def run_patched(job):
    from torch.utils.data import DataLoader

    import dali_pipes
    from dali_pipes.system.program.running import run_program

    fed = []
    theirs = DataLoader.__iter__

    def iterate(loader):
        fed.append("theirs")
        return theirs(loader)

    class Sampler:
        def set_epoch(self, epoch):
            fed.append(f"epoch {epoch}")

    class Ours:
        sampler = batch_sampler = Sampler()

        def __init__(self, loader):
            assert isinstance(loader, DataLoader)
            self.loader, self.dataset = loader, loader.dataset

        def __len__(self):
            return len(self.loader)

        def __iter__(self):
            fed.append("ours")
            return theirs(self.loader)

    DataLoader.__iter__, dali_pipes.from_torch = iterate, Ours
    status = 0
    try:
        run_program([job["patched"]], False)
    except BaseException:
        traceback.print_exc()
        status = 1
    with open(job["pipe"], "w") as answers:
        print(json.dumps({"fed": fed}), file=answers)
    os._exit(status)


if __name__ == "__main__":
    serve()
