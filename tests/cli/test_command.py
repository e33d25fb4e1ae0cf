"""The jobs as a user runs them: what comes out, and one clear line for what cannot work."""

import json
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from dali_pipes import Manifest

REPO = Path(__file__).parents[2]


@pytest.fixture
def cache(tmp_path):
    return f"data.cache_dir={tmp_path / 'cache'}"


def mistakes(folder, empty, bare, splits):
    train = f"data.train={folder}"
    yield (
        "no folder",
        "benchmark",
        ["data.train=/no/such/folder"],
        "/no/such/folder: no such folder",
    )
    yield (
        "filter of what is not there",
        "scan",
        [train, "data.filter=widht >= 24 and class in ('a', \"b\")"],
        "did you mean width?",
    )
    yield (
        "filter that keeps nothing",
        "preview",
        [train, "data.filter=width > 24000"],
        "none of the 37 images in",
    )
    yield "filter that is none", "scan", [train, "data.filter=width >"], "not an expression"
    yield "empty folder", "benchmark", [f"data.train={empty}"], "no class folders"
    yield "folder without images", "scan", [f"data.train={bare}"], "hold no image"
    yield "no data", "scan", [], "set data.train=DIR"
    yield (
        "mistyped option",
        "preview",
        [train, "loader.num_thread=2"],
        "there is no option loader.num_thread; did you mean num_threads?",
    )
    yield (
        "mistyped loader",
        "preview",
        [train, "loader=dalli"],
        "there is no loader=dalli; did you mean dali? there are dali, dali_cpu,",
    )
    yield (
        "arm as a loader",
        "preview",
        [train, "loader=synthetic"],
        "loader=synthetic is for benchmarks only, in the group arm: dali-pipes benchmark "
        "arms=[synthetic], with its options under loaders.synthetic",
    )
    yield (
        "mistyped value",
        "preview",
        [train, "loader.device=cuda"],
        "loader.device is 'cuda'; choose one of auto, gpu, cpu",
    )
    yield (
        "mistyped value of an arm",
        "benchmark",
        [train, "loaders.dali_cpu.decode=crop"],
        "loaders.dali_cpu.decode is 'crop'",
    )
    yield (
        "flag",
        "preview",
        [train, "--batches=3"],
        "--batches=3: an option is NAME=VALUE, such as batches=…",
    )
    yield (
        "flag with a dash",
        "preview",
        [train, "--batch-size", "3"],
        "--batch-size: an option is NAME=VALUE, such as batch_size=…",
    )
    yield (
        "what other programs end their flags with",
        "preview",
        [train, "--", "x"],
        "--: an option is NAME=VALUE, such as data.train=…",
    )
    yield (
        "path with an option's mark",
        "preview",
        [f"data.train={folder}/${{q}}"],
        "there is no q; a path with ${q} in its name is",
    )
    yield "nothing", "preview", ["data.train="], "no images given; set data.train=DIR"
    yield (
        "group that the job has not",
        "preview",
        [train, "model=resnet18"],
        "there are no options model=NAME for this job",
    )
    yield (
        "not a number",
        "preview",
        [train, "batch_size=many"],
        "error: batch_size is 'many'; it takes whole numbers",
    )
    yield (
        "list without brackets",
        "benchmark",
        [train, "arms=torch,dali"],
        "a list needs brackets: 'arms=[torch,dali]'",
    )
    yield (
        "list of one without brackets",
        "benchmark",
        [train, "arms=torch"],
        "a list needs brackets: 'arms=[…]'",
    )
    yield (
        "time of nothing",
        "benchmark",
        [train, "minutes=-1"],
        "minutes is -1.0; it takes numbers from 0 on",
    )
    yield (
        "folder of the splits",
        "scan",
        [f"data.train={splits}"],
        f"holds train, not classes; name one of them: {splits}/train",
    )
    yield (
        "folder of a class",
        "scan",
        [f"data.train={splits}/train/a"],
        f"{splits}/train/a: no class folders in it, only images side by side",
    )
    yield (
        "special characters",
        "preview",
        [f"data.train={folder}/a=b, c & ö!"],
        f"{folder}/a=b, c & ö!: no such folder",
    )
    yield "grammar", "preview", [train, "transform.mean=[0.5"], "needs quotes"
    yield (
        "part of an option",
        "preview",
        [f"train={folder}"],
        "there is no option train; did you mean data.train?",
    )
    yield (
        "option of a group",
        "preview",
        [train, "loader=torch", "num_workers=4"],
        "did you mean loader.num_workers?",
    )
    yield "option of many arms", "benchmark", [train, "num_threads=4"], "loaders.ARM.num_threads?"
    yield (
        "option of another loader",
        "preview",
        [train, "loader=dali", "num_workers=4"],
        "loader.num_workers of loader=torch?",
    )
    yield (
        "NaN",
        "train",
        [train, "optimizer.lr=nan"],
        "optimizer.lr is nan; it takes numbers from 0 on",
    )
    yield (
        "batch larger than the data",
        "train",
        [train, f"data.val={folder}", "batch_size=64"],
        "do not fill one batch of 64, and train leaves out what fills none; set batch_size",
    )
    yield (
        "no option",
        "scan",
        ["/my/images"],
        "/my/images: an option is NAME=VALUE, such as data.train=DIR",
    )
    yield "no loader", "preview", [train, "loader=null"], "must be a string"
    yield "arm twice", "benchmark", [train, "loader=torch", "arms=[torch,loader]"], "each only once"
    yield "too few pairs", "benchmark", [train, "pairs=0"], "error: pairs is 0"
    yield (
        "unknown workload",
        "benchmark",
        [train, "workload=trian"],
        "workload is 'trian'; choose one of loader, train",
    )
    yield (
        "too many cpus",
        "benchmark",
        [train, "cpus=100000"],
        "cpus is 100000; this process may use 1 to",
    )
    yield (
        "unknown baseline",
        "benchmark",
        [train, "baseline=dali_native"],
        "baseline is 'dali_native'",
    )
    yield (
        "unknown model",
        "benchmark",
        [train, "workload=train", "model.name=resnet"],
        "model.name is 'resnet'",
    )
    yield (
        "out that cannot be written",
        "preview",
        [train, "out=/proc/none"],
        "/proc/none: no such file or directory",
    )
    yield (
        "out of a benchmark",
        "benchmark",
        [train, "out=/proc/none"],
        "/proc/none: no such file or directory",
    )
    yield "batch size 0", "preview", [train, "batch_size=0"], "batch_size is 0"
    yield "batch size 0 in a benchmark", "benchmark", [train, "batch_size=0"], "batch_size is 0"
    yield (
        "mistake in a group",
        "train",
        [train, "optimizer.beta2=1"],
        "error: optimizer.beta2 is 1.0; it takes numbers from 0 to 0.99999",
    )
    size = (
        "(its size is transform.size; transform@eval_transform=letterbox eval_transform.flip=0 "
        "takes whole images)"
    )
    yield "size of evaluation", "train", [train, "transform=letterbox", "transform.size=640"], size
    yield "unknown arm", "benchmark", [train, "arms=[torch,dalli]"], "an arm is 'dalli'"
    if not torch.cuda.is_available():
        yield (
            "no GPU",
            "preview",
            [train, "loader=dali", "loader.device=gpu"],
            "this loader needs a GPU, and PyTorch sees none",
        )
        yield (
            "no GPU for an arm",
            "benchmark",
            [train, "arms=[torch,dali]", "loaders.dali.device=gpu"],
            "arm",
        )


NAMES = [name for name, *_ in mistakes("", "", "", "")]


@pytest.mark.few
@pytest.mark.parametrize("name", NAMES)
def test_a_mistake_ends_in_one_clear_line(command, image_folder, tmp_path, cache, name):
    (tmp_path / "empty").mkdir()
    (tmp_path / "bare/a").mkdir(parents=True)
    shutil.copytree(next(image_folder.glob("*/nested")), tmp_path / "splits/train/a")
    folders = (image_folder, *(tmp_path / each for each in ("empty", "bare", "splits")))
    _, job, arguments, message = next(each for each in mistakes(*folders) if each[0] == name)
    defaults = ["experiment=quick", f"out={tmp_path / 'out'}"] if job != "scan" else []
    done = command(job, *defaults, *arguments, cache)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    assert len(errors) == 1 and message in errors[0]
    assert done.stdout == ""


def test_scan(command, image_folder, tmp_path, cache):
    done = command("scan", f"data.train={image_folder}", cache, f"out={tmp_path / 'm.parquet'}")
    assert done.returncode == 0, done.stderr
    assert "37" in done.stdout and "JPEG 37" in done.stdout
    assert len(Manifest.load(tmp_path / "m.parquet")) == 37
    assert not (tmp_path / "outputs").exists()


def test_scan_lists_what_is_wrong(command, tmp_path, cache):
    (tmp_path / "set/a").mkdir(parents=True)
    (tmp_path / "set/a/[red]broken.jpg").write_bytes(b"")
    done = command("scan", f"data.train={tmp_path / 'set'}", cache)
    assert done.returncode == 0, done.stderr
    assert "a/[red]broken.jpg: empty file" in done.stdout


@pytest.mark.slow
def test_preview_shows_the_same_order_for_every_loader(command, image_folder, tmp_path, cache):
    orders = set()
    for loader in ("dali_cpu", "torch"):
        done = command(
            "preview",
            f"loader={loader}",
            f"data.train={image_folder}",
            cache,
            "experiment=quick",
            f"out={tmp_path / loader}",
        )
        assert done.returncode == 0, done.stderr
        assert "37 of 37 images in 3 batches" in done.stdout
        orders.add(next(line for line in done.stdout.splitlines() if line.startswith("order: ")))
        assert (tmp_path / loader / "batch.png").stat().st_size > 10_000
    assert len(orders) == 1


@pytest.fixture
def benchmark(command, image_folder, tmp_path, cache):
    quick = [
        "experiment=quick",
        "pairs=1",
        "min_seconds=0.5",
        "max_warmup_seconds=2",
        f"out={tmp_path / 'runs'}",
    ]
    return partial(command, "benchmark", f"data.train={image_folder}", cache, *quick)


@pytest.mark.slow
def test_benchmark(benchmark, tmp_path):
    # with Pillow, since with torchvision's decoder all pixels are equal to those of dali_cpu
    torch = ("loaders.torch.num_workers=2", "loaders.torch.decoder=pil")
    done = benchmark("arms=[torch,dali_cpu]", *torch, "loaders.dali_cpu.num_threads=2")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert list(result["arms"]) == ["torch", "dali_cpu"] and result["baseline"] == "torch"
    for arm in result["arms"].values():
        assert (
            arm["images_per_s"] > 0
            and arm["cpu_s_per_1000_images"] > 0
            and arm["peak_pss_mib"] > 50
        )
        assert 0 < arm["wait_ms"]["p50"] <= arm["wait_ms"]["p95"] <= arm["wait_ms"]["p99"]
        assert arm["threads"] > 1 and arm["first_batch_s"] > 0 and arm["device"] == "cpu"
    assert result["agreement"]["same_ids"] and 0 < result["agreement"]["mean"] <= 0.25
    assert {"max", "mean", "p99"} <= set(result["agreement"]) and set(
        result["agreement"]["arms"]
    ) == {"dali_cpu"}
    assert 0 < result["telemetry_cost"] < 0.1
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "result.json").read_text()) == result
    assert len(list((folder / "trials").glob("*_round_1_*.json"))) == 2
    page = (folder / "report.html").read_text()
    assert "dali_cpu" in page and "$" not in page and "http" not in page
    assert str(folder / "report.html") in done.stderr
    assert_every_key_is_documented(result)


def assert_every_key_is_documented(result):
    """docs/result.md names every key; those of plain tables, such as the arms' names, are said to
    be such there.
    """
    message = (REPO / "docs/result.md").read_text()
    keys = {key for arm in result["arms"].values() for key in arm} | {
        key for arm in result["arms"].values() for key in arm["ratio"]
    }
    keys |= (
        set(result)
        | set(result["work"])
        | set(result["protocol"])
        | set(result["provenance"])
        | set(result["agreement"])
    )
    assert sorted(key for key in keys if f"`{key}`" not in message) == []


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_stopped_leaves_no_process_asleep(
    image_folder, tmp_path, cache, number
):
    options = [
        "arms=[torch,dali_cpu]",
        "loaders.torch.num_workers=1",
        "loaders.dali_cpu.num_threads=2",
        "restart=false",
        "agreement_images=0",
        "pairs=1000",
    ]
    options += [
        f"data.train={image_folder}",
        cache,
        "experiment=quick",
        f"out={tmp_path / 'runs'}",
        "min_seconds=0.2",
    ]
    command = [sys.executable, "-m", "dali_pipes.cli", "benchmark", *options]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while len(list(tmp_path.glob("runs/*/trials/*_round_1_*.json"))) != 2:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3 and psutil.STATUS_STOPPED in {each.status() for each in family}
    process.send_signal(number)
    process.communicate(timeout=100)
    assert process.returncode == 128 + number
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not alive


@pytest.mark.slow
def test_an_arm_that_raises_ends_in_one_line_and_has_no_figures(benchmark):
    """DALI's own reader knows no evaluation transform."""
    arms = [
        "arms=[torch,dali_cpu,dali_native]",
        "loaders.torch.num_workers=1",
        "loaders.dali_cpu.num_threads=2",
        "loaders.dali_native.num_threads=2",
        "transform=eval",
        "transform.resize=110",
    ]
    done = benchmark(*arms)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    message = "arm dali_native: DaliNativeConfig supports only TrainTransform"
    assert (
        done.stderr.splitlines()[-1]
        == "error: dali_native failed and has no figures; the reason is above"
    )
    assert done.stderr.count(message) == 1
    result = json.loads(done.stdout.splitlines()[-1])
    assert (
        message in result["arms"]["dali_native"]["failed"]
        and "images_per_s" not in result["arms"]["dali_native"]
    )
    assert result["arms"]["dali_cpu"]["images_per_s"] > 0


@pytest.mark.slow
def test_a_sweep_collects_into_one_table(benchmark, tmp_path):
    done = benchmark("arms=[loader]", "-m", "loader=dali_cpu", "loader.num_threads=1,2")
    assert done.returncode == 0, done.stderr
    (sweep,) = (tmp_path / "runs").iterdir()
    assert len(list(sweep.glob("*/result.json"))) == 2
    table = (sweep / "sweep.txt").read_text()
    lines = [line for line in table.splitlines() if "dali_cpu" in line]
    assert [line.split("│")[1].strip() for line in lines] == ["1", "2"]
    assert "loader.num_threads" in table and "2 runs of this sweep" in done.stderr
