"""The measurements of the day, and the loaders that they compare."""

import contextlib
import ctypes
import itertools
import json
import mmap
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import dali_pipes as dp
from dali_pipes.backends.backend import Decoded, Job
from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.backends.transfer import copy_to
from dali_pipes.loader.batch import Batch
from dali_pipes.measure.arms.native import DaliNativeConfig
from dali_pipes.measure.arms.native_loader import DaliNativeBackend
from dali_pipes.measure.consumers import Touch, TrainConsumer
from dali_pipes.system.telemetry import cpu_seconds

# By name: options of DaliConfig. With "decoder" DALI's own decoder shares the images of each batch
# out, in one pipeline or in two that take turns.
VARIANTS: dict[str, dict[str, Any]] = {
    "routed": {},
    "routed_one": {"engine_decoders": 1},
    "routed_three": {"engine_decoders": 3},
    "routed_half": {"hw_decoder_load": 0.5},
    "routed_more": {"hw_decoder_load": 0.75},
    "routed_queue_2": {"prefetch_queue_depth": 2},
    "routed_cpu": {"cpu_share": 0.2},
    "cuda": {"hw_decoder_load": 0.0, "num_threads": 12},
    "one_decoder": {"decoder": 1},
    "two_pipelines": {"decoder": 2},
}
NATIVE = "native"
Figures = dict[str, float]


class Bench:
    """What the measurements share: images, loaders, rounds, and the file of results."""

    def __init__(self, name: str, out: Path, images: str, seconds: float, dry: bool):
        self.out, self.dry, self._file = out, dry, out / f"{name}.json"
        self.end = time.monotonic() + seconds
        self.batch, self.model = (8, "shufflenet_v2_x0_5") if dry else (256, "resnet50")
        self.steps, self.warm_up, self.span = (2, 0, 0.1) if dry else (20, 5, 0.9)
        self.threads, self.device = 2 if dry else 8, torch.device("cuda", 0)
        self.images = self.scan(Path(images or self._made_images()))
        form: dict[str, Any] = {"dtype": "fp16", "memory_format": "channels_last"}
        self.transform = dp.TrainTransform(size=64 if dry else 224, **form)
        self.lines: list[str] = []
        self.found: dict[str, Any] = {}
        self._open: list[Any] = []

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self.write()

    def close(self) -> None:
        """Ends all loaders."""
        for backend in self._open:
            backend.close()
        self._open.clear()

    def write(self) -> None:
        self._file.write_text(json.dumps(self.found | {"lines": self.lines}, indent=1) + "\n")

    def scan(self, folder: Path) -> dp.Manifest:
        """The images, repeated to an epoch."""
        found = dp.Manifest.scan(folder, progress=False)
        return found.subset(np.arange(400 if self.dry else 100_000) % len(found))

    def _made_images(self) -> Path:
        folder, rng = self.out / "made", np.random.default_rng(0)
        (folder / "a").mkdir(parents=True, exist_ok=True)
        for number in range(32):
            image = Image.fromarray(rng.integers(0, 256, (60, 80, 3), np.uint8))
            mode = "RGB" if number % 8 else "L"
            image.convert(mode).save(folder / "a" / f"{number}.jpg", subsampling=number % 3)
        return folder

    def loader(self, name: str, images: dp.Manifest | None = None, **more: Any) -> Iterator[Batch]:
        """Batches of a variant, or of NVIDIA's own graph, without end."""
        options = {"num_threads": self.threads} | VARIANTS.get(name, {}) | more
        images, pipelines, streams = images or self.images, options.pop("decoder", 0), []
        for part in range(pipelines or 1):
            if name == NATIVE:
                config: Any = DaliNativeConfig(
                    device="gpu", decode="auto", jpeg_fancy_upsampling=True, **options
                )
                some = images.subset(np.arange(min(len(images), 20_000)))
                job = Job(self.transform, some, self.batch, self.device)
                backend: DaliBackend = DaliNativeBackend(job, config)
            else:
                config = dp.DaliConfig(device="gpu", **options)
                job = Job(self.transform, images, self.batch, self.device)
                backend = DaliBackend(job, config)
                if pipelines:
                    backend._routes = None
            self._open.append(backend)
            plan = dp.Plan(images, self.transform, self.batch, seed=0, last_batch="pad")
            planned = itertools.islice(plan.iter_from(), part, None, pipelines or 1)
            streams.append(backend.stream(planned))
        turns = itertools.cycle(streams)
        batches = (next(stream) for stream in turns)
        return (self._with_labels(each) for each in batches)

    def _with_labels(self, batch: Decoded) -> Batch:
        ids = copy_to(self.device, torch.from_numpy(batch.planned.ids))
        return Batch(batch.images, ids, ids)

    def synthetic(self) -> Iterator[Batch]:
        shape = (self.batch, 3, *self.transform.shape)
        images = torch.zeros(shape, dtype=torch.float16, device=self.device)
        ids = torch.arange(self.batch, device=self.device)
        images = images.contiguous(memory_format=torch.channels_last)
        return itertools.repeat(Batch(images, ids, ids))

    def rounds(self, names: list[str], measure: Callable[[str], Figures], base: str) -> None:
        """Rounds of random order until the time is up; a line for each name, × against `base`."""
        rows: list[dict[str, Figures]] = []
        choice, spent = random.Random(0), 0.0
        while not rows or (time.monotonic() + spent < self.end and not self.dry):
            begun = time.monotonic()
            rows.append({name: measure(name) for name in choice.sample(names, len(names))})
            spent = time.monotonic() - begun
            self.lines = [_line(name, rows, base) for name in names]
            self.found["rounds"] = rows
            self.write()

    def loading(self, batches: dict[str, Iterator[Batch]]) -> Callable[[str], Figures]:
        """Measures loaders whose batches are only read."""
        touch = Touch()

        def measure(name: str) -> Figures:
            for _ in range(2 if self.dry else 4):
                touch(next(batches[name]))
            torch.cuda.synchronize()
            count, cpu, start = 0, cpu_seconds(), time.monotonic()
            while count < 2 or time.monotonic() - start < self.span:
                touch(next(batches[name]))
                count += 1
            torch.cuda.synchronize()
            took, images = time.monotonic() - start, count * self.batch
            return _figures(images, took, cpu_seconds() - cpu)

        return measure

    def training(self, batches: dict[str, Iterator[Batch]]) -> Callable[[str], Figures]:
        """Measures training with the batches of each loader."""
        consume = TrainConsumer(next(batches["synthetic"]), self.model)

        def steps(name: str, count: int) -> float:
            waited = 0.0
            for _ in range(count):
                start = time.monotonic()
                batch = next(batches[name])
                waited += time.monotonic() - start
                consume(batch)
            consume.finish()
            return waited

        def measure(name: str) -> Figures:
            steps(name, self.warm_up)
            cpu, start = cpu_seconds(), time.monotonic()
            waited = steps(name, self.steps)
            took, images = time.monotonic() - start, self.steps * self.batch
            wait_ms = 1e3 * waited / self.steps
            return _figures(images, took, cpu_seconds() - cpu) | {"wait_ms": wait_ms}

        return measure

    def train_all(self, names: list[str]) -> None:
        batches = {name: self.loader(name) for name in names} | {"synthetic": self.synthetic()}
        self.rounds(["synthetic", *names], self.training(batches), "synthetic")


def _figures(images: int, seconds: float, cpu: float) -> Figures:
    return {"images_per_s": images / seconds, "cpu_s_per_1000": cpu / images * 1e3}


def _line(name: str, rows: list[dict[str, Figures]], base: str) -> str:
    rates = [row[name]["images_per_s"] for row in rows]
    ratios = [row[name]["images_per_s"] / row[base]["images_per_s"] for row in rows]
    cpu = statistics.median(row[name]["cpu_s_per_1000"] for row in rows)
    text = (
        f"{name:16s} {statistics.median(rates):8.0f} images/s  × {statistics.median(ratios):.3f} "
        f"[{min(ratios):.3f}, {max(ratios):.3f}]  {cpu:.2f} CPU-s per 1,000"
    )
    if "wait_ms" in rows[0][name]:
        waits = statistics.median(row[name]["wait_ms"] for row in rows)
        text += f"  host waits {waits:.1f} ms a step"
    return f"{text}  ({len(rows)} rounds)"


# ---- The measurements ----


def measure_loading(bench: Bench) -> None:
    """m1: the loaders alone, against NVIDIA's graph."""
    names = [NATIVE, "one_decoder", "routed_one", "routed", "routed_three", "routed_more"]
    names += ["routed_cpu", "two_pipelines"]
    bench.rounds(names, bench.loading({name: bench.loader(name) for name in names}), NATIVE)


def measure_stages(bench: Bench) -> None:
    """m2: where a batch's time goes, alone and beside training, by the NVTX ranges of DALI and
    nvImageCodec.
    """
    tool = ctypes.CDLL(os.environ["NVTX_INJECTION64_PATH"])
    bench.steps = max(bench.steps, 10)  # more than a loader has ready, which show nothing
    for beside in (False, True):
        for name in ("one_decoder", "routed"):
            batches = {name: bench.loader(name), "synthetic": bench.synthetic()}
            measure = bench.training(batches) if beside else bench.loading(batches)
            measure(name)
            tool.nvtx_times_reset()

            start, count = time.monotonic(), bench.steps + bench.warm_up
            if beside:
                measure(name)
            else:
                for _ in range(count):
                    next(batches[name])
            took = time.monotonic() - start

            where = "beside training" if beside else "alone"
            path = bench.out / f"m2_{name}_{where.split()[0]}.tsv"
            tool.nvtx_times_write(str(path).encode())
            bench.close()
            bench.lines.append(f"{name} {where}: {1e3 * took / count:.1f} ms a batch")
            bench.lines += [f"  {line}" for line in _stages(path, count)]
            bench.write()


def measure_training(bench: Bench) -> None:
    """m3: training with the loaders, against synthetic batches."""
    names = [NATIVE, "one_decoder", "routed_one", "routed", "routed_three", "routed_half"]
    bench.train_all([*names, "routed_queue_2", "routed_cpu", "cuda", "two_pipelines"])


def measure_connections(bench: Bench) -> None:
    """m4: m3 with CUDA_DEVICE_MAX_CONNECTIONS=32 and two CUDA streams for the CUDA decoder."""
    bench.train_all(["one_decoder", "routed", "routed_half"])


def measure_priority(bench: Bench) -> None:
    """m5: m3 with the loader's streams at the highest priority: an experiment, not a product."""
    priority = int(os.environ.get("GPU_DAY_PRIORITY", 0))
    told = "dry run" if bench.dry else _raise_priority(priority)
    bench.train_all(["one_decoder", "routed", "routed_half"])
    bench.lines.append(f"streams: {told}")


def measure_interference(bench: Bench) -> None:
    """m6: training on synthetic batches while a loader runs beside it, at the rate of training,
    whose batches nobody waits for.
    """
    train = bench.training({"synthetic": bench.synthetic()})
    train("synthetic")
    rate = train("synthetic")["images_per_s"]
    names = ["nothing", "one_decoder", "routed", "routed_cpu", "cuda"]
    beside = {name: bench.loader(name) for name in names[1:]}

    def measure(name: str) -> Figures:
        stop, taken = threading.Event(), [0]

        def drain() -> None:
            due = time.monotonic()
            while not stop.is_set():
                next(beside[name])
                taken[0] += 1
                due += bench.batch / rate
                time.sleep(max(0.0, due - time.monotonic()))

        thread = threading.Thread(target=drain, daemon=True)
        if name != "nothing":
            thread.start()
        begun = time.monotonic()
        figures = train("synthetic")
        figures["beside_images_per_s"] = taken[0] * bench.batch / (time.monotonic() - begun)
        stop.set()
        if name != "nothing":
            thread.join(20)
        return figures

    bench.rounds(names, measure, "nothing")
    for name in names[1:]:
        rates = [row[name]["beside_images_per_s"] for row in bench.found["rounds"]]
        bench.lines.append(f"{name}: {statistics.median(rates):.0f} images/s were loaded beside it")


def measure_chroma(bench: Bench) -> None:
    """m7: the JPEG engine on 4:4:4, on 4:2:0 and on both at once, with fancy upsampling and plain:
    one set, encoded in three ways.
    """
    # Pillow's numbers, of the images in turn: 0 is 4:4:4, 2 is 4:2:0
    sampling = {"444": (0, 0), "420": (2, 2), "mixed": (0, 2)}
    source = bench.images.subset(np.arange(min(125, len(bench.images))))
    batches: dict[str, Iterator[Batch]] = {}
    for kind, of in sampling.items():
        folder = bench.out / f"chroma_{kind}"
        (folder / "a").mkdir(parents=True, exist_ok=True)
        for number in range(len(source)):
            with Image.open(source.path(number)) as image:
                file = folder / "a" / f"{number}.jpg"
                image.convert("RGB").save(file, quality=90, subsampling=of[number % 2])

        images = bench.scan(folder)
        for load, fancy in [(0.65, True), (1.0, True), (1.0, False)]:
            options = {"hw_decoder_load": load, "jpeg_fancy_upsampling": fancy, "decode": "whole"}
            name = f"{kind}, load {load}, {'fancy' if fancy else 'plain'}"
            batches[name] = bench.loader("one_decoder", images, **options)
        batches[f"{kind}, routed"] = bench.loader("routed", images, decode="whole")
    bench.rounds(list(batches), bench.loading(batches), next(iter(batches)))


def measure_few_cores(bench: Bench) -> None:
    """m8: training on four cores; waits of the host that spin, or sleep
    (cudaDeviceScheduleBlockingSync).
    """
    if os.environ.get("GPU_DAY_SLEEPS") and not bench.dry:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuInit(0)
        # CU_CTX_SCHED_BLOCKING_SYNC, before there is a context
        bench.found["status"] = driver.cuDevicePrimaryCtxSetFlags_v2(0, 4)
    bench.threads = min(bench.threads, 4)
    VARIANTS["huffman_on_gpu"] = {"hybrid_huffman_threshold": 300_000, "hw_decoder_load": 0.8}
    bench.train_all(["routed", "routed_three", "huffman_on_gpu", "one_decoder"])


MEASUREMENTS: dict[str, Callable[[Bench], None]] = {
    "m1": measure_loading,
    "m2": measure_stages,
    "m3": measure_training,
    "m4": measure_connections,
    "m5": measure_priority,
    "m6": measure_interference,
    "m7": measure_chroma,
    "m8": measure_few_cores,
    "m8_sleeping": measure_few_cores,
}

# ranges of DALI and nvImageCodec, and what they are
_STAGES = {
    "[DALI][Mixed op] Run decoders__Image": "decoders",
    "nvjpegDecodeBatchedEx": "engine",
    "nvjpeg_cuda_decoder process": "CUDA decoder, all threads",
    "nvjpegDecodeJpegHost (is_gpu_hybrid=0)": "of which Huffman on the CPU",
    "[DALI][CPU op] Run io__file__Read": "reading",
    "[DALI][CPU op] Run ExternalSource": "the plan",
    "[DALI][GPU op] Run Resize": "launching the resize",
}


def _stages(path: Path, batches: int) -> Iterator[str]:
    """A line for each of these stages: ms a batch, and µs of each run of it."""
    rows = [line.split("\t") for line in path.read_text().splitlines()]
    for wanted, what in _STAGES.items():
        found = [tuple(map(int, numbers)) for _, name, *numbers in rows if name.strip() == wanted]
        if not found:
            continue
        count, wall, cpu, _ = (sum(each) for each in zip(*found, strict=True))
        longest = max(each[3] for each in found)
        yield (
            f"{what} {wall / 1e6 / batches:.2f} ms a batch, {count / batches:.1f} times, "
            f"{wall / 1e3 / count:.0f} µs each, longest {longest / 1e6:.1f} ms, "
            f"CPU {cpu / 1e6 / batches:.2f} ms a batch"
        )


def _raise_priority(priority: int) -> str:
    """Gives this priority to every stream that is made without one, from now on; returns what was
    done.

    No option of DALI, nvImageCodec or nvJPEG does that. A jump over the first bytes of
    cuStreamCreate(stream, flags) makes it cuStreamCreateWithPriority(stream, flags, priority).
    PyTorch's streams state theirs, and the default stream, on which training runs, keeps the
    lowest.
    """
    torch.zeros(1, device="cuda")  # training's context and default stream are there
    driver, libc = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL(None, use_errno=True)
    with_priority = ctypes.cast(driver.cuStreamCreateWithPriority, ctypes.c_void_p).value or 0
    targets = {ctypes.cast(driver.cuStreamCreate, ctypes.c_void_p).value or 0}
    for flags in (0, 1):
        pointer = ctypes.c_void_p()
        status = driver.cuGetProcAddress(
            b"cuStreamCreate", ctypes.byref(pointer), 12000, ctypes.c_uint64(flags)
        )
        targets |= {pointer.value} if status == 0 and pointer.value else set()

    # mov edx, priority; mov rax, with_priority; jmp rax
    code = b"\xba" + priority.to_bytes(4, "little", signed=True)
    code += b"\x48\xb8" + with_priority.to_bytes(8, "little") + b"\xff\xe0"
    for target in targets:
        page = target // mmap.PAGESIZE * mmap.PAGESIZE
        writable = (ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), 7)
        if libc.mprotect(*writable):
            return f"mprotect failed ({ctypes.get_errno()})"
        ctypes.memmove(target, code, len(code))
    return f"{len(targets)} places patched{_priority_of_new_stream(driver)}"


def _priority_of_new_stream(driver: ctypes.CDLL) -> str:
    found = [
        path
        for each in sys.path
        for path in sorted(Path(each or ".").glob("nvidia/*/lib/libcudart.so.1*"))
    ]
    with contextlib.suppress(OSError, IndexError):
        stream, priority = ctypes.c_void_p(), ctypes.c_int()
        runtime = ctypes.CDLL(str(found[0]))
        status = runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), 1)
        driver.cuStreamGetPriority(stream, ctypes.byref(priority))
        return f"; a new stream has status {status} and priority {priority.value}"
    return "; no libcudart to try it with"
