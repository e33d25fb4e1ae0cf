"""Made result.json and table.md here: python docs/benchmarks/peers_cpu_2cores_2026-11-23/measure.py
IMAGES ENVIRONMENTS --rounds 5

CPU image loaders on the same JPEGs: RandomResizedCrop(224, scale=(0.08, 1)), flip, batches of 64,
as many workers or threads as cores; normalized to float32, or uint8. Every peer has a virtual
environment of its own in ENVIRONMENTS, made by uv if it is not there, and is used as its
documentation says. SPDL also needs FFmpeg's shared libraries (Debian: apt install ffmpeg). In every
round each loader runs once, in random order, as a fresh process; ratios are taken within the round,
against `torch` with the same output.
"""

import argparse
import contextlib
import io
import itertools
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from pathlib import Path

import psutil

BATCH_SIZE, SIZE, SCALE, RATIO = 64, 224, (0.08, 1.0), (3 / 4, 4 / 3)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# images, images, batches, batches, seconds, seconds
EPOCH, SHARD, WARM, LEAST, LEAST_S, LIMIT_S = 5_000, 25, 10, 20, 3, 120
PACKAGES = {
    "webdataset": ["webdataset==1.0.2", "torch==2.10.0", "torchvision==0.25.0"],
    "spdl": ["spdl-io==0.8.0", "spdl-core==0.8.0", "torch==2.10.0"],
    "litdata": ["litdata==0.2.76", "torch==2.10.0", "torchvision==0.25.0"],
    "tfdata": ["tensorflow-cpu==2.21.0"],
    "turboloader": ["turboloader==2.39.0"],
}
# what each loader does differently
DIFFERENCES = json.loads(Path(__file__).with_name("differences.json").read_text())
RUNS = [
    (name, dtype)
    for name in DIFFERENCES
    for dtype in ("fp32", "uint8")
    if dtype == "fp32" or "turbo" not in name
]


def peer_of(name):
    return name.removesuffix("_default") if name not in ("torch", "dali_cpu") else "ours"


def ours(data, dtype, cores, name):
    import dali_pipes as dp

    config = (
        dp.TorchConfig(num_workers=cores)
        if name == "torch"
        else dp.DaliConfig(device="cpu", num_threads=cores)
    )
    manifest, transform = (
        dp.Manifest.load(data / "manifest.parquet"),
        dp.TrainTransform(dtype=dtype),
    )
    loader = dp.build_loader(
        manifest, config, transform=transform, batch_size=BATCH_SIZE, device="cpu"
    )
    return (batch.images for batch in itertools.chain.from_iterable(itertools.repeat(loader)))


def webdataset(data, dtype, cores, name):
    import webdataset as wds
    from torchvision import transforms as t

    finish = [t.PILToTensor()] if dtype == "uint8" else [t.ToTensor(), t.Normalize(MEAN, STD)]
    transform = t.Compose(
        [t.RandomResizedCrop(SIZE, SCALE, RATIO), t.RandomHorizontalFlip(), *finish]
    )
    shards = sorted(map(str, data.glob("shard-*.tar")))
    dataset = wds.WebDataset(
        shards * repeats(data), shardshuffle=len(shards) * repeats(data)
    ).repeat()
    dataset = (
        dataset.shuffle(1000)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(transform, int)
        .batched(BATCH_SIZE, partial=False)
    )
    return (images for images, _ in wds.WebLoader(dataset, batch_size=None, num_workers=cores))


def spdl(data, dtype, cores, name):
    import spdl.io
    import torch
    from spdl.pipeline import PipelineBuilder

    torch.set_num_threads(1)
    paths = read_paths(data)
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in (MEAN, STD))

    def source():
        while True:
            yield from random.sample(paths, len(paths))

    def decode(path):
        packets = spdl.io.demux_image(path)
        left, top, width, height = random_window(packets.width, packets.height)
        steps = [
            f"crop={width}:{height}:{left}:{top}",
            f"scale={SIZE}:{SIZE}:flags=bilinear",
            "format=pix_fmts=rgb24",
        ]
        return spdl.io.decode_packets(
            packets, filter_desc=",".join(steps + ["hflip"] * (random.random() < 0.5))
        )

    def collate(batch):
        images = spdl.io.to_torch(spdl.io.convert_frames([decode(path) for path in batch])).permute(
            0, 3, 1, 2
        )
        return images if dtype == "uint8" else images.float().div_(255).sub_(mean).div_(std)

    builder = (
        PipelineBuilder()
        .add_source(source())
        .aggregate(BATCH_SIZE)
        .pipe(collate, concurrency=cores)
        .add_sink(4)
    )
    pipeline = builder.build(num_threads=cores)
    with pipeline.auto_stop():
        yield from pipeline.get_iterator()


def random_window(width, height):
    """torchvision's RandomResizedCrop.make_params, for SPDL, which has none: left, top, width,
    height.
    """
    for _ in range(10):
        area, ratio = (
            width * height * random.uniform(*SCALE),
            math.exp(random.uniform(*map(math.log, RATIO))),
        )
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def litdata(data, dtype, cores, name):
    import torch
    from litdata import StreamingDataLoader, StreamingDataset
    from torchvision.transforms import v2

    finish = (
        [] if dtype == "uint8" else [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    )
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(SIZE, SCALE, RATIO, antialias=True),
            v2.RandomHorizontalFlip(),
            *finish,
        ]
    )
    options = {"shuffle": True, "subsample": float(repeats(data))}
    dataset = StreamingDataset(
        str(data / "litdata"), **options, transform=lambda sample: (transform(sample[0]), sample[1])
    )
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH_SIZE, num_workers=cores, drop_last=True, persistent_workers=True
    )
    return (images for images, _ in itertools.chain.from_iterable(itertools.repeat(loader)))


def litdata_sample(path):
    from PIL import Image

    return Image.open(path), 0  # of a JPEG file, litData keeps the bytes


def prepare_litdata(data):
    """In a process of its own: it changes how later ones are started."""
    from litdata import optimize

    optimize(
        litdata_sample,
        read_paths(data),
        str(data / "litdata"),
        chunk_size=SHARD,
        num_workers=1,
        verbose=False,
    )
    return {}


def tfdata(data, dtype, cores, name):
    import tensorflow as tf

    mean, std = tf.constant(MEAN) * 255, tf.constant(STD) * 255
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])

    def make(path):
        encoded = tf.io.read_file(path)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(encoded),
            whole,
            min_object_covered=0.0,
            aspect_ratio_range=RATIO,
            area_range=SCALE,
            max_attempts=10,
        )
        image = tf.io.decode_and_crop_jpeg(encoded, tf.concat([begin[:2], size[:2]], 0), channels=3)
        image = tf.image.random_flip_left_right(
            tf.image.resize(image, (SIZE, SIZE), antialias=True)
        )
        return tf.cast(tf.round(image), tf.uint8) if dtype == "uint8" else (image - mean) / std

    paths = read_paths(data)
    dataset = (
        tf.data.Dataset.from_tensor_slices(paths).repeat(repeats(data)).shuffle(EPOCH).repeat()
    )
    dataset = (
        dataset.map(make, tf.data.AUTOTUNE)
        .batch(BATCH_SIZE, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )
    options = tf.data.Options()
    options.threading.private_threadpool_size = cores
    return dataset.with_options(options).as_numpy_iterator()


def turboloader(data, dtype, cores, name):
    import turboloader

    loader = turboloader.DataLoader(
        str(data / "epoch.tar"), BATCH_SIZE, cores, shuffle=True, transform=turboloader.ImageNetNormalize(), image_size=SIZE,
        output_format="pytorch", train_aug=True, antialias=name == "turboloader", drop_last=True,
    )  # fmt: skip
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        for images, report in loader:
            assert not report.get("decode_failures"), report
            yield images


def read_paths(data):
    return (data / "files.txt").read_text().splitlines()


def repeats(data):
    return math.ceil(EPOCH / len(read_paths(data)))


def cpu_seconds():
    """User and system seconds of this process, its living descendants, and every child that has
    ended.
    """
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:4]) for process in processes)


def measure(name, dtype, data, cores):
    """One trial in this process: images a second, CPU milliseconds an image."""
    batches = iter(globals()[peer_of(name)](data, dtype, cores, name))
    first = next(batches)
    shapes = (BATCH_SIZE, 3, SIZE, SIZE), (BATCH_SIZE, SIZE, SIZE, 3)
    assert tuple(first.shape) in shapes and str(first.dtype).endswith(
        "float32" if dtype == "fp32" else dtype
    ), first
    spread = float((first / 1.0).std()) / (1 if dtype == "fp32" else 60)
    assert 0.5 < spread < 2, (
        f"these are no images, or not normalized: their standard deviation is {spread:.2f} "
        "of what it should be"
    )
    for _ in range(WARM):
        next(batches)
    start, cpu, images = time.perf_counter(), cpu_seconds(), 0
    while images < LEAST * BATCH_SIZE or time.perf_counter() - start < LEAST_S:
        images += len(next(batches))
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    answer = {
        "images_per_s": images / seconds,
        "cpu_ms_per_image": cpu / images * 1000,
        "images": images,
    }
    return answer | (
        {"ffmpeg": sys.modules["spdl.io.utils"].get_ffmpeg_versions()} if name == "spdl" else {}
    )


def as_child(name, dtype, data):
    """Writes the trial's figures, and ends without waiting for threads and workers: the parent ends
    those.
    """
    try:
        answer = (
            prepare_litdata(data)
            if dtype == "prepare"
            else measure(name, dtype, data, len(os.sched_getaffinity(0)))
        )
    except Exception as error:
        traceback.print_exc()
        answer = {"error": f"{type(error).__name__}: {error}"}
    (data / "answer.json").write_text(json.dumps(answer))
    sys.stderr.flush()
    os._exit(0)


def trial(python, run, data):
    """The figures of a process of its own, or {"error": …}."""
    from dali_pipes.measure.worker_process import THREADS

    environment = (
        os.environ
        | dict.fromkeys(THREADS, str(len(os.sched_getaffinity(0))))
        | {"OMP_WAIT_POLICY": "PASSIVE"}
    )
    if python != sys.executable:
        environment.pop("PYTHONPATH", None)
    answer, log = data / "answer.json", data / "log.txt"
    answer.unlink(missing_ok=True)
    with log.open("w") as stream:
        command = [python, __file__, "--child", *run, data]
        process = subprocess.Popen(
            command, env=environment, stdout=stream, stderr=stream, start_new_session=True
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT_S)
        with contextlib.suppress(ProcessLookupError):  # its workers, and itself if it did not end
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wrote = ["no answer", *log.read_text().strip().splitlines()]
    return json.loads(answer.read_text()) if answer.exists() else {"error": wrote[-1]}


def environment_of(peer, folder):
    """The peer's Python and the versions of its packages, or why it could not be installed."""
    python, stamp, requirements = (
        folder / "bin" / "python",
        folder / "installed.txt",
        [*PACKAGES[peer], "psutil==7.2.2"],
    )
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if not stamp.exists() or stamp.read_text().split() != requirements:
        for command in (
            ["venv", "--clear", folder, "--python", sys.executable],
            ["pip", "install", *requirements, "--python", python],
        ):
            done = subprocess.run([uv, *command], capture_output=True, text=True)
            if done.returncode:
                return None, {"error": f"not installed: {done.stderr.split('error: ')[-1].strip()}"}
        stamp.write_text("\n".join(requirements))
    listed = subprocess.run(
        [uv, "pip", "freeze", "--python", python], capture_output=True, text=True, check=True
    ).stdout.split()
    return str(python), dict(
        each.split("==") for each in listed if "==" in each and not each.startswith("nvidia-")
    )


def write_data(manifest, data):
    """The images in every peer's form. Only TurboLoader gets copies of them: its epoch is one tar
    file.
    """
    from dali_pipes.data.images import repeat_epoch

    repeat_epoch(manifest).save(data / "manifest.parquet")
    paths = [str(manifest.path(each).resolve()) for each in range(len(manifest))]
    (data / "files.txt").write_text("\n".join(paths))
    for shard, start in enumerate(range(0, len(paths), SHARD)):
        with tarfile.open(data / f"shard-{shard:05}.tar", "w") as tar:
            for number, path in enumerate(paths[start : start + SHARD]):
                tar.add(path, f"{number:05}.jpg")
                label = tarfile.TarInfo(f"{number:05}.cls")
                label.size = 1
                tar.addfile(label, io.BytesIO(b"0"))
    with tarfile.open(data / "epoch.tar", "w") as tar:
        for number, path in enumerate(paths * repeats(data)):
            tar.add(path, f"{number:06}.jpg")


def table(figures):
    columns = [
        "loader",
        "version",
        "output",
        "images/s",
        "× `torch` [min, max]",
        "CPU-ms an image",
        "× `torch` [min, max]",
    ]
    lines = [
        "| " + " | ".join([*columns, "what it does differently"]) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for (name, dtype), each in figures.items():
        cells = [each["error"].replace("\n", " "), "", "", ""] if "error" in each else []
        for key, digits in () if cells else (("images_per_s", 0), ("cpu_ms_per_image", 2)):
            mean, low, high = each[f"{key} against torch"]
            cells += [f"{each[key]:,.{digits}f}", f"{mean:.2f} [{low:.2f}, {high:.2f}]"]
        text = DIFFERENCES[name] if dtype == "fp32" else ""
        lines.append("| " + " | ".join([f"`{name}`", each["version"], dtype, *cells, text]) + " |")
    return "\n".join(lines) + "\n"


def main(images, environments, rounds):
    import numpy as np

    import dali_pipes as dp
    from dali_pipes.data.images import sample_images
    from dali_pipes.system.provenance import provenance

    environments.mkdir(parents=True, exist_ok=True)
    manifest = sample_images(dp.Manifest.scan(images, progress=False), EPOCH, seed=0)
    origin = provenance(manifest.describe(), [])
    found = {peer: environment_of(peer, environments.resolve() / peer) for peer in PACKAGES}
    found["ours"] = sys.executable, origin["versions"]
    trials = {run: [] for run in RUNS}
    with tempfile.TemporaryDirectory(dir=environments) as folder:
        data = Path(folder).resolve()
        write_data(manifest, data)
        if found["litdata"][0]:
            found["litdata"][1].update(trial(found["litdata"][0], ("litdata", "prepare"), data))
        for number in range(rounds):
            for run in random.Random(number).sample(RUNS, len(RUNS)):
                python, versions = found[peer_of(run[0])]
                failed = next((each for each in [versions, *trials[run]] if "error" in each), None)
                trials[run].append(failed or trial(python, run, data))
                versions |= trials[run][-1].pop("ffmpeg", {})
            print(f"round {number + 1} of {rounds}", flush=True)
    figures = {}
    for run in RUNS:
        peer, base = peer_of(run[0]), trials["torch", run[1]]
        package = PACKAGES.get(peer, ["dali_pipes"])[0].split("==")[0]
        figures[run] = each = {"version": found[peer][1].get(package, "")}
        failed = next((trial for trial in [*trials[run], *base] if "error" in trial), None)
        each |= {"error": failed["error"]} if failed else {"trials": trials[run]}
        for key in () if failed else ("images_per_s", "cpu_ms_per_image"):
            ratios = np.array(
                [mine[key] / torch[key] for mine, torch in zip(trials[run], base, strict=True)]
            )
            each[key] = float(np.median([mine[key] for mine in trials[run]]))
            each[f"{key} against torch"] = [
                float(np.exp(np.log(ratios).mean())),
                float(ratios.min()),
                float(ratios.max()),
            ]
    result = {"figures": {" ".join(run): each for run, each in figures.items()}, "rounds": rounds}
    result |= {"packages": {peer: versions for peer, (_, versions) in found.items()}}
    result |= {key: origin[key] for key in ("date", "hardware", "data", "commit")}
    Path(__file__).with_name("result.json").write_text(json.dumps(result, indent=2) + "\n")
    Path(__file__).with_name("table.md").write_text(table(figures))
    print(table(figures))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        as_child(*sys.argv[2:4], Path(sys.argv[4]))
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images", type=Path)
    parser.add_argument("environments", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    main(**vars(parser.parse_args()))
