"""What augmentation costs on the host, inside DALI's graph and after it, on the simulated GPU, whose decoders sleep.

    python -m tests.simulated_gpu python docs/benchmarks/augmentation_after_the_graph_simulated_gpu_2026-11-29/measure.py \\
        OUT.json IMAGES --before CHECKOUT [--rounds 5]

One process holds the graphs of CHECKOUT (f9a0c002, whose graph augments), another one those of this checkout, whose graph ends before the
augmentation. Their arms take turns in rounds of random order. A span of an arm is some batches; of each span are kept

    ms              wall time a batch until DALI's graph has delivered it. What PyTorch does after the graph is left out.
    with_calls_ms   the same with PyTorch's calls, in the calling thread, for arms that augment after the graph (below)
    executor_us     CPU time an image of DALI's executor threads, in the spans of `ms`
    process_us      CPU time an image of the whole process, in the spans of `ms`

ms and with_calls_ms are divided by `slower`, by which all sleeps were longer: the host is then as one that is so much faster.

PyTorch's calls cannot be timed on the simulated GPU, which takes 250 us for many an operator, since it asks a Python function for the
shape of the result. So the same calls are made on the CPU, with the operations drawn for the batch, on images of 8 x 8 pixels, which leave
little but the calls. `host` has their CPU time in a thread that does nothing else, ms a batch, how many operators run that start a kernel on a
GPU, and how many of those make the host wait for the GPU.
"""

import argparse
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

THREADS, BATCHES, SIZE = 8, 10, 256
# microseconds for 500 x 375 pixels, as in docs/benchmarks/routed_graph_simulated_gpu_2026-11-28
TIMES = {"engine": 63, "mixed": 140, "cuda": 650}
SLOWER = [1, 4]
POLICIES = ["none", "TrivialAugmentWide", "RandAugment"]
CORNER = 8


# ---- the children: each holds the arms of one checkout ----


def cpu_of_executors():
    """Seconds of CPU time of all threads of this process that are DALI's executor's."""
    nanoseconds = 0
    for task in Path("/proc/self/task").iterdir():
        if "Exec" in (task / "comm").read_text():
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


class Child:
    def __init__(self, images):
        import torch

        import dali_pipes as dp
        from dali_pipes.backends.dali.backend import DaliBackend

        self.torch, self.dp, self.backend = torch, dp, DaliBackend
        self.device = torch.device("cuda", 0)
        manifest = dp.Manifest.scan(images, progress=False)
        self.manifest = manifest.subset(np.arange(4 * SIZE) % len(manifest))
        torch.set_num_threads(1)
        self.corners = torch.randint(256, (SIZE, 3, CORNER, CORNER), dtype=torch.uint8)
        self.streams, self.closers, self.calls = {}, [], None
        DaliBackend._finish_last = self.after_graph

    def after_graph(self, batch):
        """In place of the backend's method, which finishes what DALI's graph has delivered."""
        if self.calls:
            self.operate(self.calls, batch.planned.groups[0][0].augmentation)
        return batch

    def operate(self, view, drawn):
        """The calls that a GPU gets: an operation takes all images that drew it at once."""
        from dali_pipes.backends.pixels.operations import _change_together

        images, strengths = self.corners.clone(), drawn.magnitudes.astype(np.float64)
        for place, slot in enumerate(view._slots):
            _change_together(images, drawn.ops[:, place], strengths[:, place], slot)

    def transform(self, policy):
        augment = [] if policy == "none" else [policy]
        return self.dp.TrainTransform(dtype="fp16", memory_format="channels_last", augment=augment)

    def plan(self, transform):
        return self.dp.Plan(self.manifest, transform, SIZE, seed=0, last_batch="pad").iter_from()

    def stream(self, policy):
        if policy not in self.streams:
            transform = self.transform(policy)
            config = self.dp.DaliConfig(device="gpu", num_threads=THREADS, prefetch_queue_depth=2)
            try:
                from dali_pipes.backends.backend import Job
            except ImportError:
                made = self.backend(self.manifest, transform, config, SIZE, self.device)
            else:
                made = self.backend(Job(transform, self.manifest, SIZE, self.device), config)
            self.closers.append(made.close)
            self.streams[policy] = made.stream(self.plan(transform))
        return self.streams[policy]

    def batches(self, policy):
        stream = self.stream(policy)
        for _ in range(4):  # what was made ahead while others were measured
            next(stream)
        self.torch.cuda.synchronize()
        executors, process, began = cpu_of_executors(), time.process_time(), time.monotonic()
        for _ in range(BATCHES):
            next(stream)
        wall = time.monotonic() - began
        executors, process = cpu_of_executors() - executors, time.process_time() - process
        self.torch.cuda.synchronize()
        images = BATCHES * SIZE
        return 1e3 * wall / BATCHES, 1e6 * executors / images, 1e6 * process / images

    def span(self, policy, slower, calls):
        self.calls = None
        wall, executors, process = self.batches(policy)
        found = {"ms": wall / slower, "executor_us": executors, "process_us": process}
        if calls:
            self.calls = self.view(policy)
            found["with_calls_ms"] = self.batches(policy)[0] / slower
        return found

    def view(self, policy):
        from dali_pipes.backends.pixels.finish import View

        return View(self.transform(policy))

    def host(self, policy):
        """ms of the calling thread for each of some batches."""
        view, taken = self.view(policy), []
        for each in itertools.islice(self.plan(self.transform(policy)), BATCHES):
            began = time.thread_time()
            self.operate(view, each.groups[0][0].augmentation)
            taken.append(1e3 * (time.thread_time() - began))
        return taken

    def count(self, policy):
        """Operators of one batch on a GPU that start a kernel, and those that wait."""
        from torch.utils._python_dispatch import TorchDispatchMode

        class Count(TorchDispatchMode):
            kernels, waits = 0, 0

            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                name = function.name()
                waits = name in ("aten::bincount", "aten::_local_scalar_dense")
                self.waits += waits
                self.kernels += not (
                    function.is_view
                    or name.startswith(("aten::empty", "aten::unbind", "aten::_local"))
                )
                return function(*args, **(kwargs or {}))

        planned = next(iter(self.plan(self.transform(policy))))
        with Count() as count:
            self.view(policy).operate(
                self.corners.to(self.device), planned.groups[0][0].augmentation
            )
        self.torch.cuda.synchronize()
        return {"kernels": count.kernels, "waits": count.waits}

    def close(self):
        self.torch.cuda.synchronize()
        for close in self.closers:
            close()
        self.streams.clear()
        self.torch.cuda.synchronize()


def serve(images):
    child = Child(images)
    for line in sys.stdin:
        asked = json.loads(line)
        what = asked.pop("what")
        if what == "span":
            os.environ["SIMULATED_GPU_TIMES"] = asked.pop("times")
        print("answer", json.dumps(getattr(child, what)(**asked)), flush=True)


class Served:
    def __init__(self, checkout, images):
        environment = os.environ | {"SIMULATED_GPU_TIMES": "engine=1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(checkout), environment["PYTHONPATH"]])
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", images],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what, **arguments):
        self.process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self.process.stdin.flush()
        while line := self.process.stdout.readline():
            if line.startswith("answer "):
                return json.loads(line.removeprefix("answer "))
        raise SystemExit("a child ended")


# ---- the parent ----


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("images")
    parser.add_argument("--before", required=True)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()

    children = {
        "before": Served(args.before, args.images),
        "after": Served(Path.cwd(), args.images),
    }
    arms = list(itertools.product(children, POLICIES))
    choice, found = random.Random(0), {"batch_size": SIZE, "threads": THREADS, "times": TIMES}
    for slower in SLOWER:
        told = ",".join(f"{each}={us * slower}" for each, us in TIMES.items())
        rows = []
        for _ in range(1 + args.rounds):
            row = {"load": os.getloadavg()[0]}
            for when, policy in choice.sample(arms, len(arms)):
                row[f"{when}, {policy}"] = children[when].ask(
                    "span",
                    policy=policy,
                    slower=slower,
                    times=told,
                    calls=when == "after" and policy != "none",
                )
            rows.append(row)
        rows = rows[1:]  # all pipelines begin in the first round
        found[f"slower {slower}"] = rows
        print(f"slower {slower}, medians of {len(rows)} rounds [least, greatest]")
        for when, policy in arms:
            shown = ""
            for figure in rows[0][f"{when}, {policy}"]:
                values = [row[f"{when}, {policy}"][figure] for row in rows]
                shown += f"  {figure} {statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"
            print(f"  {when + ', ' + policy:28s}{shown}", flush=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")

    found["host"] = {each: children["after"].ask("count", policy=each) for each in POLICIES[1:]}
    for policy, each in list(found["host"].items()) * (1 + args.rounds):
        taken = children["after"].ask("host", policy=policy)
        each.setdefault("ms", []).append(taken)
    for policy, each in found["host"].items():
        each["ms"] = each["ms"][1:]
        values = list(itertools.chain(*each["ms"]))
        print(
            f"{policy}: {each['kernels']} kernels, {each['waits']} waits; ms a batch of the calling thread: "
            f"{statistics.median(values):.1f} [{min(values):.1f}, {max(values):.1f}]"
        )
    args.out.write_text(json.dumps(found, indent=1) + "\n")
    for child in children.values():
        child.ask("close")


if __name__ == "__main__":
    serve(sys.argv[2]) if sys.argv[1] == "--serve" else main()
