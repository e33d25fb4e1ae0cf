"""How long a training loop waits for data that lie in a slow object store: dali_pipes, WebDataset
and LitData on CPU cores.

    python docs/benchmarks/object_store_cpu_2026-11-24/measure.py IMAGES --rounds 3 \
        --python webdataset=ENVS/webdataset/bin/python --python litdata=ENVS/litdata/bin/python

makes result.json beside this file, and prints a table. This Python holds `dali_pipes[dev]` (for
moto); the others hold the same torch and torchvision, and webdataset 1.0.2, or litdata 0.2.76 with
obstore 0.12.1; `curl` is on the PATH. For example:

    uv venv ENVS/litdata
    uv pip install --python ENVS/litdata/bin/python litdata==0.2.76 obstore==0.12.1 torch==2.10.0
    torchvision==0.25.0

**The store.** An S3 server on this machine behind a proxy (slow_store.py), in a process of its own.
Each request waits 200 ms, all of them at the same time; 5 % are answered with 500 or 503, drawn
with the round's number as seed. Bytes a second are not limited.

**The data.** The JPEGs of IMAGES, repeated to `--images`, 50 a file: tars for dali_pipes and
WebDataset, and the same images in LitData's format. dali_pipes' manifest is scanned beforehand and
opened from a local file; WebDataset has the list of URLs; LitData fetches its index. dali_pipes and
LitData may cache half of the data, and the cache is empty at the start. WebDataset streams, as is
its default, and fetches more than an epoch's bytes while its shuffle buffer of 1,000 fills. It
reads http:// URLs with its own curl, for which anyone may read the objects. `--arms webdataset_aws`
pipes from `aws s3 cp` on the PATH instead: a Python program that is started for each shard, which
costs more than fetching shards as small as these, so it is not an arm by default.

**The loop.** As many batches of 32 as fill `--epochs`, RandomResizedCrop(224), flip, normalized to
float32; after each batch a step that sleeps. It takes twice as long as the slowest loader needs for
a batch from local files, so decoding is not the limit. `waiting` is the time in next() after the
first batch, as a share of all time from there; `start` is the time from the start of the process to
the first batch, imports included. Bytes include what was fetched ahead when the loop ended. Each
round runs every arm in random order, each in a fresh process. As a control each arm runs once with
local files and the same step. An arm that raises or hangs is reported with its error and the
batches that it made.

**Retries**, as the sources have them: RETRIES below. Nobody's defaults are changed, but for obstore
(in LitData), which refuses http:// unless allowed.
"""

import argparse
import contextlib
import io
import itertools
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

LATENCY_S, FAILING = 0.2, 0.05
BATCH_SIZE, SIZE, SHARD, WORKERS = 32, 224, 50, 2
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WARM, LIMIT_S = 5, 120  # batches; seconds without a batch
PACKAGES = (
    "dali_pipes",
    "nvidia-dali-cuda120",
    "s3fs",
    "webdataset",
    "litdata",
    "obstore",
    "boto3",
    "torch",
    "torchvision",
    "pillow",
)
RETRIES = {
    "dali_pipes": (
        "each request up to ten times with pauses that double; those of s3fs and the AWS SDK "
        "are turned off"
    ),
    "webdataset": (
        "its http:// is `curl --retry 30 --retry-delay 2`; what fails then is raised "
        "(handler=reraise_exception)"
    ),
    "webdataset_aws": (
        "pipe:aws s3 cp: the AWS CLI tries each request five times (retry mode legacy); what "
        "fails then is raised"
    ),
    "litdata": (
        "index: boto3, 1,000 attempts, adaptive; chunks: obstore, 10 retries within 180 s with "
        "pauses that double"
    ),
}


def dali_pipes(data, place, settings):
    import dali_pipes as dp

    window = dp.Windows(lanes=1, window_gb=float(os.environ["DALI_PIPES_CACHE_GB"]) / 2)
    manifest, config = (
        dp.Manifest.load(data / f"{place}.parquet"),
        dp.DaliConfig(device="cpu", num_threads=WORKERS),
    )
    options = {
        "batch_size": BATCH_SIZE,
        "sampling": window,
        "seed": settings["seed"],
        "device": "cpu",
    }
    loader = dp.build_loader(manifest, config, transform=dp.TrainTransform(size=SIZE), **options)
    return (batch.images for batch in itertools.chain.from_iterable(itertools.repeat(loader)))


def webdataset(data, place, settings, url="{AWS_ENDPOINT_URL}/images/tar/{name}"):
    import webdataset as wds

    names = sorted(path.name for path in (data / "tar").glob("*.tar"))
    urls = [
        str(data / "tar" / name) if place == "local" else url.format(name=name, **os.environ)
        for name in names
    ]
    dataset = (
        wds.WebDataset(urls, shardshuffle=100, seed=settings["seed"])
        .repeat()
        .shuffle(1000)
        .decode("pil")
    )
    dataset = (
        dataset.to_tuple("jpg", "cls")
        .map_tuple(augmentation(), int)
        .batched(BATCH_SIZE, partial=False)
    )
    return (images for images, _ in wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS))


def webdataset_aws(data, place, settings):
    return webdataset(data, place, settings, "pipe:aws s3 cp s3://images/tar/{name} -")


def litdata(data, place, settings):
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = "true"
    url = str(data / "litdata") if place == "local" else "s3://images/litdata"
    storage = (
        {}
        if place == "local"
        else {"storage_options": {"endpoint_url": os.environ["AWS_ENDPOINT_URL"]}}
    )
    cache = {"cache_dir": settings["cache"], "max_cache_size": settings["cache_bytes"]}
    augment = augmentation()
    dataset = StreamingDataset(
        url,
        shuffle=True,
        seed=settings["seed"],
        transform=lambda sample: (augment(sample[0]), sample[1]),
        **cache,
        **storage,
    )
    loader = StreamingDataLoader(
        dataset, batch_size=BATCH_SIZE, num_workers=WORKERS, drop_last=True, persistent_workers=True
    )
    return (images for images, _ in itertools.chain.from_iterable(itertools.repeat(loader)))


def augmentation():
    """Of a PIL image or, from LitData, of a uint8 tensor."""
    import torch
    from torchvision.transforms import v2

    finish = [
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
        v2.ToPureTensor(),
    ]
    return v2.Compose(
        [v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip(), *finish]
    )


def prepare_dali_pipes(data):
    import dali_pipes as dp

    dp.Manifest.open(str(data / "tar"), progress=False).save(data / "local.parquet")
    dp.Manifest.open("s3://images/tar", progress=False).save(data / "store.parquet")


def litdata_sample(path):
    from PIL import Image

    return Image.open(path), 0  # of a JPEG file, LitData keeps the bytes


def prepare_litdata(data):
    from litdata import optimize

    paths = (data / "files.txt").read_text().splitlines()
    optimize(
        litdata_sample, paths, str(data / "litdata"), chunk_size=SHARD, num_workers=1, verbose=False
    )


def train(name, data, place, settings):
    """Writes when each batch was asked for and came; ends without waiting for threads and workers:
    the parent ends those.
    """
    with open(data / "times.txt", "w", buffering=1) as times:
        batches = globals()[name](data, place, settings)
        for _ in range(settings["batches"]):
            asked = time.time()
            batch = next(batches)
            times.write(f"{asked} {time.time()}\n")
            assert (
                tuple(batch.shape) == (BATCH_SIZE, 3, SIZE, SIZE)
                and str(batch.dtype) == "torch.float32"
            ), (
                batch.shape,
                batch.dtype,
            )
            assert 0.5 < float(batch.std()) < 2, "these are no images, or not normalized"
            time.sleep(settings["step_s"])
    os._exit(0)


class Bench:
    """The data in `folder`, the store, and what runs against it."""

    def __init__(self, folder, pythons):
        self.data, self.pythons = folder, pythons
        server = ["nice", "-n", "5", sys.executable, str(Path(__file__).with_name("slow_store.py"))]
        self.server = subprocess.Popen(
            server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.urls = json.loads(self.server.stdout.readline())

    def restart(self, *settings):
        """Counts of the store since the last call; what is requested from now on has these
        settings.
        """
        print(json.dumps(settings), file=self.server.stdin, flush=True)
        return json.loads(self.server.stdout.readline())

    def upload(self, folder):
        """Bytes of the folder's files."""
        import boto3

        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
        client = boto3.client("s3", endpoint_url=self.urls["direct"], **keys)
        client.create_bucket(Bucket="images")
        for path in (self.data / folder).iterdir():
            client.upload_file(str(path), "images", f"{folder}/{path.name}", {"ACL": "public-read"})
        return sum(path.stat().st_size for path in (self.data / folder).iterdir())

    def child(self, arm, job, limit_s, **environment):
        """Runs one in a process of its own until it ends, or writes nothing for `limit_s`. Its
        error if it failed.
        """
        from dali_pipes.measure.worker_process import THREADS

        python = self.pythons.get(arm, sys.executable)
        environment = (
            os.environ | dict.fromkeys(THREADS, str(WORKERS)) | self.access() | environment
        )
        if python != sys.executable:
            environment.pop("PYTHONPATH", None)
        times, log = self.data / "times.txt", self.data / "log.txt"
        times.write_text("")
        with log.open("w") as stream:
            command = [python, __file__, "--child", arm, str(self.data), json.dumps(job)]
            process = subprocess.Popen(
                command, env=environment, stdout=stream, stderr=stream, start_new_session=True
            )
            try:
                while process.poll() is None and time.time() - times.stat().st_mtime < limit_s:
                    time.sleep(0.05)
                hangs = process.poll() is None
            finally:
                with contextlib.suppress(ProcessLookupError):  # its workers too
                    os.killpg(process.pid, signal.SIGKILL)
            status = process.wait()
        if hangs:
            return f"no batch for {limit_s} s"
        return error_in(log.read_text(), status) if status else None

    def access(self):
        keys = {
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        address = {"AWS_ENDPOINT_URL": self.urls["slow"], "NO_PROXY": "127.0.0.1"}
        return keys | address | {"AWS_EC2_METADATA_DISABLED": "true", "OMP_WAIT_POLICY": "PASSIVE"}

    def prepare(self, arm):
        with tempfile.TemporaryDirectory(dir=self.data) as cache:
            error = self.child(arm, {"prepare": True}, 600, DALI_PIPES_CACHE=cache)
        if error:
            raise SystemExit(f"{arm} cannot be prepared: {error}")

    def prepare_all(self, manifest, images, arms):
        """Bytes of the data of each arm, which are written and uploaded."""
        write_data(manifest, self.data, images)
        tars = self.upload("tar")
        for arm in {"dali_pipes", "litdata"}.intersection(arms):
            self.prepare(arm)
        sizes = {arm: self.upload("litdata") if arm == "litdata" else tars for arm in arms}
        print(f"the data are written and uploaded, bytes: {sizes}", flush=True)
        return sizes

    def run_locally(self, arms, batches, step_s, sizes):
        """Figures of each arm with local files, from which every arm must get to the end."""
        figures = {}
        for arm in arms:
            figures[arm] = self.run(arm, "local", batches, step_s, sizes[arm] // 2)
            print(f"from local files, step of {step_s:.3f} s, {arm}: {figures[arm]}", flush=True)
            if "error" in figures[arm]:
                raise SystemExit(f"{arm} cannot even read local files: {figures[arm]['error']}")
        return figures

    def run(self, arm, place, batches, step_s, cache_bytes, seed=0):
        """Figures of one run: seconds, a share of the time, counts of the store; `error` if it did
        not get to the end.
        """
        with tempfile.TemporaryDirectory(dir=self.data) as cache:
            settings = {
                "batches": batches,
                "step_s": step_s,
                "seed": seed,
                "cache": cache,
                "cache_bytes": cache_bytes,
            }
            variables = {"DALI_PIPES_CACHE": cache, "DALI_PIPES_CACHE_GB": str(cache_bytes / 1e9)}
            self.restart(LATENCY_S, FAILING, seed)
            began = time.time()
            error = self.child(arm, {"place": place, "settings": settings}, LIMIT_S, **variables)
            counts = self.restart(0, 0, 0)
        rows = [
            tuple(map(float, line.split()))
            for line in (self.data / "times.txt").read_text().splitlines()
        ]
        figures = {"batches": len(rows), **counts, "load": os.getloadavg()[0]} | (
            {"error": error} if error else {}
        )
        if rows:
            figures["start_s"] = rows[0][1] - began
        if len(rows) > WARM:
            waits = [came - asked for asked, came in rows[1:]]
            seconds = rows[-1][1] - rows[0][1]
            figures |= {
                "waiting": sum(waits) / seconds,
                "longest_wait_s": max(waits),
                "seconds": seconds,
            }
            figures["s_per_batch"] = (rows[-1][1] - rows[WARM][1]) / max(1, len(rows) - 1 - WARM)
        return figures


def error_in(log, status):
    """The last line of the log that names an exception."""
    lines = [line for line in log.splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return [f"ended with {status}", *lines][-1][:300]


def write_data(manifest, data, images):
    """The images as tars, and as a list of files for LitData."""
    paths = [str(manifest.path(each).resolve()) for each in range(len(manifest))]
    paths = list(itertools.islice(itertools.cycle(paths), images))
    (data / "files.txt").write_text("\n".join(paths))
    (data / "tar").mkdir()
    for shard, start in enumerate(range(0, images, SHARD)):
        with tarfile.open(data / "tar" / f"shard-{shard:05}.tar", "w") as tar:
            for number, path in enumerate(paths[start : start + SHARD], start):
                tar.add(path, f"{number:06}.jpg")
                label = tarfile.TarInfo(f"{number:06}.cls")
                label.size = 1
                tar.addfile(label, io.BytesIO(b"0"))


def versions_of(python):
    code = (
        "import importlib.metadata as m, json; print(json.dumps({each.name: each.version for "
        "each in m.distributions()}))"
    )
    found = json.loads(
        subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    )
    return {name: found[name] for name in PACKAGES if name in found}


def summary(trials, control, data_bytes, epochs):
    """Medians over the rounds that got to the end, with the number of those that did not."""
    whole = [each for each in trials if "error" not in each]
    figures = {
        "trials": trials,
        "local": control,
        "data_bytes": data_bytes,
        "crashed": len(trials) - len(whole),
    }
    for key in (
        ("waiting", "start_s", "longest_wait_s", "requests", "failures", "bytes") if whole else ()
    ):
        figures[key] = statistics.median(each[key] for each in whole)
    if whole:
        figures["bytes_per_epoch_over_data"] = figures["bytes"] / data_bytes / epochs
    return figures


def table(figures):
    columns = [
        "loader",
        "waiting [all rounds]",
        "from local files",
        "start, s",
        "from local files",
        "longest wait, s",
    ]
    columns += ["fetched an epoch / data", "requests", "failed", "crashed"]
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for arm, each in figures.items():
        local, rounds = (
            each["local"],
            ", ".join(
                f"{trial['waiting']:.1%}" for trial in each["trials"] if "error" not in trial
            ),
        )
        cells = ["–", f"{local['waiting']:.1%}", "–", f"{local['start_s']:.1f}", *"––––"]
        if "waiting" in each:
            cells[0], cells[2], cells[4] = (
                f"{each['waiting']:.1%} [{rounds}]",
                f"{each['start_s']:.1f}",
                f"{each['longest_wait_s']:.1f}",
            )
            cells[5:] = [
                f"{each['bytes_per_epoch_over_data']:.2f}",
                f"{each['requests']:.0f}",
                f"{each['failures']:.0f}",
            ]
        crashed = f"{each['crashed']} of {len(each['trials'])}"
        lines.append("| " + " | ".join([f"`{arm}`", *cells, crashed]) + " |")
    return "\n".join(lines)


def main(images_folder, arms, rounds, python, images, epochs, out):
    import dali_pipes as dp
    from dali_pipes.system.provenance import provenance

    pythons = {
        arm: str(Path(path).absolute()) for arm, path in (each.split("=", 1) for each in python)
    }
    pythons |= {"webdataset_aws": pythons["webdataset"]} if "webdataset" in pythons else {}
    manifest, batches = (
        dp.Manifest.scan(images_folder, progress=False),
        images * epochs // BATCH_SIZE,
    )
    origin, trials = provenance(manifest.describe(), []), {arm: [] for arm in arms}
    result = {key: origin[key] for key in ("date", "hardware", "data", "commit")}
    result |= {"packages": {arm: versions_of(pythons.get(arm, sys.executable)) for arm in arms}}
    result |= {"retries": {arm: RETRIES[arm] for arm in arms}}
    settings = {
        "latency_s": LATENCY_S,
        "failing": FAILING,
        "batch_size": BATCH_SIZE,
        "images": images,
        "epochs": epochs,
    }
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), pythons)
        try:
            sizes = bench.prepare_all(manifest, images, arms)
            alone = bench.run_locally(arms, images // BATCH_SIZE, 0, sizes)
            step_s = 2 * max(each["s_per_batch"] for each in alone.values())
            print(f"a step takes {step_s:.3f} s, a run about {batches * step_s:.0f} s", flush=True)
            control = bench.run_locally(arms, images // BATCH_SIZE, step_s, sizes)
            result["settings"] = settings | {
                "step_s": step_s,
                "images_per_shard": SHARD,
                "workers": WORKERS,
            }
            result["local_s_per_batch"] = {arm: each["s_per_batch"] for arm, each in alone.items()}
            for number in range(rounds):
                for arm in random.Random(number).sample(arms, len(arms)):
                    trials[arm].append(
                        bench.run(arm, "store", batches, step_s, sizes[arm] // 2, number)
                    )
                    print(f"round {number + 1} of {rounds}, {arm}: {trials[arm][-1]}", flush=True)
                result["figures"] = {
                    arm: summary(trials[arm], control[arm], sizes[arm], epochs) for arm in arms
                }
                out.write_text(json.dumps(result, indent=2) + "\n")
        finally:
            bench.server.kill()
    print(table(result["figures"]))


def as_child(arm, data, job):
    if "prepare" in job:
        globals()[f"prepare_{arm}"](data)
    else:
        train(arm, data, **job)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        as_child(sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
        raise SystemExit
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("images_folder", type=Path, metavar="IMAGES")
    parser.add_argument(
        "--arms", nargs="+", choices=RETRIES, default=["dali_pipes", "webdataset", "litdata"]
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="ARM=PATH",
        help="of webdataset and litdata",
    )
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result.json"))
    main(**vars(parser.parse_args()))
