"""The image built and run: as a user that owns nothing, on a read-only root, without a network, the
images mounted read-only.
"""

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch
from container.engine import CANARY, CONFINED, REPO

from dali_pipes.cli.jobs import JOBS

pytestmark = [pytest.mark.container, pytest.mark.timeout(2400)]

SMALL = [
    "data.train=/data",
    "data.val=/data",
    "model.name=squeezenet1_1",
    "transform.size=32",
    "eval_transform.resize=36",
]
SMALL += ["loader=dali_cpu", "warmup_epochs=0", "batch_size=16", "optimizer.lr=0.01"]
# What no wheel brings: the driver, and networks and libraries that only clusters have.
OF_THE_HOST = {
    *{
        "libcuda.so.1",
        "libcutensor.so.2",
        "libcutensorMg.so.2",
        "libfabric.so.1",
        "libibverbs.so.1",
        "libmlx5.so.1",
    },
    *{
        "libmpi.so.40",
        "liboshmem.so.40",
        "libpmix.so.2",
        "librdmacm.so.1",
        "libucp.so.0",
        "libucs.so.0",
    },
}
SIZE_LIMIT_GB = 8.2


@pytest.fixture
def ask(run):
    """What another program of the image prints."""

    def go(program, *arguments, options=(), status=0):
        return run(*arguments, options=[f"--entrypoint={program}", *options], status=status).stdout

    return go


def python(ask, text, options=()):
    return json.loads(ask("python", "-c", f"import json\n{text}", options=options).splitlines()[-1])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "trian: no such job; did you mean train? The jobs are train, "),
        (["torchrun", "trian"], "torchrun has no job to run"),
    ],
)
def test_a_wrong_job_is_reported_in_one_line(run, words, message):
    done = run(*words, status=2)
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error: {message}") and done.stdout == ""


def test_without_a_word_all_jobs_are_listed(run):
    head, _, *lines = run().stdout.splitlines()
    assert head.startswith("dali-pipes JOB ") and [line.split()[0] for line in lines] == list(JOBS)


def test_the_scripts_and_their_configuration_are_there(ask):
    for folder, place in (("conf", "dali_pipes/conf"), ("scripts", "scripts")):
        there = ask(
            "find",
            f"/opt/dali_pipes/{place}",
            "-type",
            "f",
            "!",
            "-name",
            "*.pyc",
            "-printf",
            "%P\n",
        ).split()
        ours = subprocess.run(
            ["git", "ls-files"], cwd=REPO / folder, capture_output=True, text=True, check=True
        ).stdout.split()
        elsewhere = {"container/slim.py", *(each for each in ours if each.startswith("gpu_day/"))}
        assert set(ours) - elsewhere - set(there) == {name for name in ours if name.endswith(".sh")}


def test_the_configuration_says_who_runs_it_and_what_the_driver_brings(engine, image):
    found = engine.inspect(image)
    config = found["Config"]
    environment = dict(each.split("=", 1) for each in config["Env"])
    assert set(environment["NVIDIA_DRIVER_CAPABILITIES"].split(",")) == {
        "compute",
        "utility",
        "video",
    }
    assert environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert config.get("User") == "10001:10001"
    assert set(config["Volumes"]) == {"/cache", "/runs", "/tmp"}
    labels = {
        key.removeprefix("org.opencontainers.image."): value
        for key, value in config["Labels"].items()
    }
    assert (
        labels["revision"] == "0123abc"
        and labels["licenses"] == "Apache-2.0"
        and labels["title"] == "dali_pipes"
    )
    assert f'version = "{labels["version"]}"\n' in (REPO / "pyproject.toml").read_text()
    health = found.get("HealthCheck") or config.get("Healthcheck") or found.get("Healthcheck")
    assert health["Test"][-1] == "healthy"


def test_the_user_owns_nothing_and_writes_to_the_volumes_only(ask):
    allowed = [
        "(",
        "-user",
        "10001",
        "-o",
        "-group",
        "10001",
        "-o",
        "-perm",
        "/002",
        ")",
        "!",
        "-type",
        "l",
    ]
    writable = ask("find", "/", "-xdev", *allowed, "-print", options=["--user=0"])
    assert set(writable.split()) - {"/run/lock"} == {"/cache", "/runs", "/tmp", "/var/tmp"}
    assert ask("find", "/opt", "!", "-user", "root", "-print") == ""
    assert ask("id", "-u").strip() == "10001"
    tried = ask(
        "sh",
        "-c",
        (
            "for each in / /opt /opt/dali_pipes /data; do touch $each/x && echo $each; done "
            "2>/dev/null; true"
        ),
    )
    assert tried == ""
    ask("touch", "/runs/writable", "/cache/writable", "/tmp/writable")


def test_nothing_is_in_it_that_builds_or_tests(ask):
    tools = ["cc", "gcc", "g++", "clang", "ld", "make", "nvcc", "uv"]
    assert ask("sh", "-c", f"for each in {' '.join(tools)}; do command -v $each; done; true") == ""
    left = ask(
        "find",
        "/opt",
        "(",
        "-name",
        "tests",
        "-o",
        "-name",
        "*.a",
        "-o",
        "-name",
        "*.whl",
        ")",
        "-print",
    )
    assert left == ""
    top = ask("find", "/opt/dali_pipes", "-mindepth", "1", "-maxdepth", "1", "-printf", "%f ")
    assert {each for each in top.split() if "dist-info" not in each} == {"dali_pipes", "scripts"}


def test_nothing_of_the_machine_that_built_it_stays(engine, image, ask):
    message = json.dumps(engine.inspect(image)) + engine("history", "--no-trunc", image).stdout
    assert CANARY not in message and "uv-cache" not in message
    search = [
        "-rl",
        *(f"--exclude-dir={name}" for name in ("proc", "sys", "site-packages")),
        CANARY,
        "/",
    ]
    ask("grep", *search, options=["--user=0"], status=1)  # finds none


def test_only_what_is_named_was_added_to_the_base_image(engine, ask):
    listing = ["/", "-xdev", "-type", "f", "-printf", "%p %s\n"]
    base = engine("run", *CONFINED, "--user=0", engine.base, "find", *listing).stdout.splitlines()
    added = {
        line.split()[0]
        for line in set(ask("find", *listing, options=["--user=0"]).splitlines()) - set(base)
    }
    accounts = {
        f"/etc/{name}" for name in ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")
    }
    of_the_engine = {
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
        "/run/.containerenv",
        "/.dockerenv",
    }
    named = {
        "/usr/bin/tini",
        *accounts,
        *(f"{file}-" for file in accounts),
        *of_the_engine,
        "/var/log/lastlog",
        "/var/log/faillog",
    }
    assert {
        file for file in added if not file.startswith(("/opt/venv/", "/opt/dali_pipes/"))
    } - named == set()


def test_doctor_finds_the_software_whole(run):
    done = run("doctor", "data.train=/data", status=1)
    findings = json.loads(done.stdout.splitlines()[-1])["findings"]
    assert {
        each["check"]: each["status"] for each in findings if each["group"] == "software"
    } == dict.fromkeys(["Python", "PyTorch", "one CUDA", "DALI", "nvImageCodec", "CuPy"], "ok")
    assert [each["check"] for each in findings if each["status"] == "failed"] == ["driver and GPUs"]


def test_scan(run):
    assert "JPEG 37" in run("scan", "data.train=/data").stdout


def test_the_comparison_under_a_user_id_that_nobody_has(run, runs):
    quick = [
        "experiment=quick",
        "pairs=1",
        "min_seconds=0.3",
        "max_warmup_seconds=1",
        "loaders.torch.num_workers=1",
        "loaders.dali_cpu.num_threads=2",
    ]
    done = run(
        "benchmark",
        "data.train=/data",
        "arms=[torch,dali_cpu]",
        *quick,
        options=["--user=4242:4242"],
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert all(arm["images_per_s"] > 0 for arm in result["arms"].values())
    assert result["agreement"]["same_ids"] and result["agreement"]["mean"] <= 0.25
    assert result["provenance"]["commit"] == "0123abc"
    (folder,) = (runs / "benchmark").iterdir()
    assert (folder / "report.html").exists()


def test_two_steps_of_training(run, runs):
    done = run("train", *SMALL, "epochs=1", "out=/runs/two")
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (
        summary["images"] == 32
        and summary["val_images"] == 37
        and summary["provenance"]["versions"]["dali_pipes"] == "0.3.0"
    )
    assert (runs / "two/best.pt").stat().st_uid == 10001


def test_torchrun_starts_several_ranks(run):
    done = run(
        "torchrun",
        "--nproc-per-node=2",
        "train",
        *SMALL,
        "batch_size=8",
        "epochs=1",
        "out=/runs/ranks",
    )
    assert json.loads(done.stdout.splitlines()[-1])["ranks"] == 2


def test_compilation_is_refused_in_one_line(run):
    done = run("train", *SMALL, "epochs=1", "model.compile=true", "out=/runs/compiled", status=2)
    assert done.stderr.splitlines()[-1].startswith("error: model.compile=true needs a C++ compiler")


def test_sigterm_ends_training_with_a_checkpoint(engine, image, data, runs):
    mounts = [f"--volume={data}:/data:ro", f"--volume={runs}:/runs"]
    options = [each for each in CONFINED if each != "--rm"]
    training = engine(
        "run",
        "--detach",
        *options,
        *mounts,
        image,
        "train",
        *SMALL,
        "epochs=10000",
        "out=/runs/stopped",
    ).stdout.strip()
    try:
        moments = set()
        deadline = time.time() + 200
        while len(moments) < 3:  # it moves
            running = json.loads(engine("inspect", training).stdout)[0]["State"]["Running"]
            assert running and time.time() < deadline, engine("logs", training).stderr
            asked = engine("exec", training, "stat", "-c", "%y", "/tmp/heartbeat", check=False)
            if asked.returncode == 0:
                moments.add(asked.stdout)
        assert engine("exec", training, "healthy").returncode == 0
        stalled = engine("exec", "--env=DALI_PIPES_STALL_S=-1", training, "healthy", check=False)
        assert stalled.returncode == 1 and stalled.stdout.startswith("no step for")
        engine("stop", "--time=120", training)
        (state,) = json.loads(engine("inspect", training).stdout)
        assert state["State"]["ExitCode"] == 128 + 15
        assert "stopped by SIGTERM and saved" in (runs / "stopped/train.log").read_text()
        saved = torch.load(runs / "stopped/last.pt", weights_only=True)
        assert saved["loader"]["samples"] + 32 * saved["loader"]["epoch"] > 0
    finally:
        engine("rm", "--force", "--volumes", training, check=False)


def test_every_package_and_every_module_of_the_project_can_be_imported(ask):
    """What was taken out is missed by none of them. Not installed are TensorFlow, MXNet, for which
    DALI brings a program, Ray, and the libraries of two adapters.
    """
    failed = python(
        ask,
        """
import importlib, importlib.metadata, pkgutil
import dali_pipes
modules = [each.name for each in pkgutil.walk_packages(dali_pipes.__path__, "dali_pipes.")]
failed = {}
for name in [*filter(str.isidentifier, importlib.metadata.packages_distributions()), *modules]:
    try:
        importlib.import_module(name)
    except Exception as error:
        failed[name] = repr(error)
print(json.dumps(failed))""",
    )
    adapters = {f"dali_pipes.adapters.{name}" for name in ("accelerate", "transformers")}
    others = {
        "rec2idx",
        "dali_pipes.tools.diagnosis.programs.tfdata",
        "dali_pipes.tools.preparation.on_ray",
    }
    assert set(failed) == others | adapters, failed
    assert all("No module named 'accelerate'" in failed[name] for name in adapters)


def test_no_library_misses_another(ask):
    """What is linked against is there, be it in another package that is loaded before; libraries of
    the host aside.
    """
    message = ask(
        "sh",
        "-c",
        (
            "find /opt/venv -name '*.so*' -type f | xargs ldd 2>/dev/null | grep 'not found' | "
            "sort -u"
        ),
    )
    missing = {line.split()[0] for line in message.splitlines()}
    present = set(ask("find", "/opt/venv", "-name", "*.so*", "-printf", "%f\n").splitlines())
    assert missing - present == OF_THE_HOST
    assert {
        "libnvjpeg.so.12",
        "libnvrtc.so.12",
        "libcudnn.so.9",
        "libnccl.so.2",
        "libnvjpeg_ext.so.0.8.0",
    } <= present


def test_size_and_start(engine, image, run, ask, capfd):
    """Where the bytes are, and how long the first batch takes, as runs/container.json;
    docs/benchmarks/image_2026-11-21/README.md tells both.
    """
    folders = "/opt/venv/lib/python3*/site-packages/nvidia/* /opt/venv/lib/python3*/site-packages/*"
    listed = ask("sh", "-c", f"du -s --block-size=1000000 {folders}")
    parts = {
        line.split("\t")[1].split("site-packages/")[1]: int(line.split("\t")[0])
        for line in listed.splitlines()
    }
    first = """
import time
import dali_pipes as dp
imported = time.time()
manifest = dp.Manifest.scan("/data", progress=False)
options = {"transform": dp.TrainTransform(size=224), "batch_size": 32}
with dp.build_loader(manifest, dp.DaliConfig(device="cpu"), **options) as loader:
    len(next(iter(loader)))
print(json.dumps({"imported": imported, "batch": time.time()}))"""
    starts = []
    for _ in range(3):
        began = time.time()
        starts.append(
            {name: round(moment - began, 1) for name, moment in python(ask, first).items()}
        )
    size = engine.inspect(image)["Size"] / 1e9
    report = {"image_gb": round(size, 2), "seconds_from_run_to": starts}
    report |= {
        "mb": {
            name: mb
            for name, mb in sorted(parts.items(), key=lambda part: -part[1])
            if mb >= 50 and name != "nvidia"
        }
    }
    folder = REPO / "runs"
    folder.mkdir(exist_ok=True)
    (folder / "container.json").write_text(json.dumps(report, indent=1) + "\n")
    with capfd.disabled():
        print(f"\n{json.dumps(report)}")
    assert size < SIZE_LIMIT_GB


def test_a_change_of_code_builds_only_the_last_layer_again(engine, image):
    copy = engine.folder / "checkout"
    names = subprocess.run(
        ["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    for name in names:
        if (REPO / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPO / name, copy / name)
    changed = copy / "dali_pipes/tools/scan/run.py"
    changed.write_text(changed.read_text() + "\n# changed\n")
    began = time.time()
    engine.build("localhost/dali_pipes:changed", Path(copy), "--build-arg=REVISION=0123abc")
    seconds = time.time() - began
    before, after = (
        engine.inspect(each)["RootFS"]["Layers"] for each in (image, "localhost/dali_pipes:changed")
    )
    print(f"a change of code: {seconds:.0f} s")
    assert before[:-1] == after[:-1] and before[-1] != after[-1]
