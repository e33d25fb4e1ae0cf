"""The jobs of the command dali-pipes.

A job is a function with the name of its file in conf/. --help shows its docstring, and it imports
what it needs when it runs.
"""

import argparse
import contextlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from dali_pipes.cli.broken_installation import importing
from dali_pipes.cli.overrides import expand_home
from dali_pipes.cli.sweep import job_folder, job_number, search_mode, sweep_folder
from dali_pipes.data.image_files.headers import VERIFY
from dali_pipes.errors import ConfigError

# jobs that read their words themselves
DIRECT = ("index",)


def train(config: Any) -> float | None:
    """Trains a network, or a task of yours; the same samples and crops with every loader.

    docs/training.md has the rest.

    dali-pipes train experiment=demo_resnet18
    dali-pipes train data.root=/imagenet model=resnet50 loader=dali precision=bf16
    torchrun --nproc-per-node 8 -m dali_pipes.cli train \\
        experiment=imagenet_resnet50 data.root=/imagenet
    """
    with _extra_for_training():
        from dali_pipes.system.stdout import say
        from dali_pipes.training.log.sweep import write_sweep
        from dali_pipes.training.run import train
        from dali_pipes.training.trainer import TrainingError

    console, mode = Console(stderr=True), search_mode()
    try:
        folder = train(config, job_folder(), mode)
    except TrainingError as error:
        if mode is None:
            # the table of the sweep names this run, too
            if sweep := sweep_folder():
                write_sweep(sweep)
            raise
        # a search goes on: nothing is worse than a run that cannot be finished
        say(console, f"error: {error}")
        return _worst(mode)
    if folder is None:
        return None

    if sweep := sweep_folder():
        say(console, write_sweep(sweep))
    if mode is None:
        return None
    summary = json.loads((folder / "summary.json").read_text())
    # without a best epoch: the evaluations found only NaN
    return float(summary[f"best_{summary['monitor']}"]) if "monitor" in summary else _worst(mode)


def _worst(mode: str) -> float:
    return -math.inf if mode == "max" else math.inf


def benchmark(config: Any) -> None:
    """The A/B: compares speed and CPU time of loaders on the same samples and crops.

    First the pixels of all loaders (`arms`) are compared, then they are measured in rounds of
    random order: ratios with intervals.

    dali-pipes benchmark data.train=/my/images arms=[torch,dali]
    dali-pipes benchmark data.train=/my/images -m loader=dali_cpu loader.num_threads=1,2,4
    dali-pipes benchmark my_train:make_loader arms=[dali,dali_cpu]     # against your DataLoader
    """
    from dali_pipes.tools.benchmark.run import benchmark

    benchmark(config, sweep_folder())


def scan(config: Any) -> None:
    """Reads the headers of all images, prints a summary, and lists what is wrong.

    dali-pipes scan data.train=/my/images out=train.arrow
    """
    from dali_pipes.tools.scan.run import scan

    # jobs of a sweep would replace each other's manifests
    if config.out and (number := job_number("out")) is not None:
        config.out = str(Path(config.out).with_stem(f"{Path(config.out).stem}_{number}"))
    scan(config)


def index() -> None:
    """Writes index.arrow beside images in an object store, so that they open at once.

    Whoever opens them then reads that file and no image.

    docs/object-stores.md has the rest.

    dali-pipes index s3://bucket/train
    dali-pipes index /my/shards/train     # before they are uploaded
    dali-pipes index 's3://bucket/train/shard-*.tar'     # it names all shards of the folder
    dali-pipes index s3://bucket/captions --target text=.txt     # what is read besides the label
    """
    from dali_pipes.cli.conf import read_targets
    from dali_pipes.tools.scan.run import index as write_index

    parser = _make_parser(index)
    parser.add_argument(
        "source",
        metavar="URL",
        type=expand_home,
        help="of the images: shards in a folder, by a pattern or not, or class folders",
    )
    parser.add_argument(
        "--verify",
        choices=VERIFY,
        default=VERIFY[0],
        help="header: reads headers only; full: decodes every image",
    )
    read_as = "one of data.targets, such as text=.txt or mask=.png; may be repeated"
    parser.add_argument("--target", metavar="NAME=VALUE", action="append", default=[], help=read_as)
    parser.add_argument(
        "--without-labels", action="store_true", help="read no label, and need none"
    )
    options = parser.parse_args()
    targets = read_targets(options.target)
    write_index(options.source, options.verify, targets, not options.without_labels)


def preview(config: Any) -> None:
    """Shows what a loader yields: shapes, speed, and a picture of the first images.

    It also prints a checksum of the sample order.

    dali-pipes preview loader=dali data.train=/my/images
    dali-pipes preview loader=torch data.train=/my/images     # the same samples, the same crops
    """
    from dali_pipes.tools.preview.run import preview

    # jobs of a sweep would replace each other's pictures
    if (number := job_number("out")) is not None:
        config.out = f"{config.out}/{number}"
    preview(config)


def prepare(config: Any) -> None:
    """Prepares images once, before training: smaller JPEGs, or shards.

    docs/prepare.md has the rest.

    dali-pipes prepare data.train=/my/images out=/my/images_256 resize=256 quality=90
    dali-pipes prepare data.root=/imagenet out=/imagenet_shards to=shards
    """
    from dali_pipes.tools.preparation.run import prepare

    prepare(config)


def diagnose(config: Any) -> None:
    """Finds why training waits, and what would change it.

    It measures the parts of training alone and together, and prints a verdict, fixes and their
    gain.

    dali-pipes diagnose data.train=/my/images model=resnet18 loader=torch loader.num_workers=4
    dali-pipes diagnose experiment=imagenet_resnet50 data.root=/imagenet verify=true
    dali-pipes diagnose seconds=1 limit=300 -- train.py ARGS     # your own program, as it is
    """
    with _extra_for_training():
        from dali_pipes.tools.diagnosis.run import diagnose
    diagnose(config)


def doctor(config: Any) -> None:
    """Is this machine set up for loading images and training on a GPU?

    A line for each check, with what to do where one is not ok; `dali-pipes doctor > FILE` writes
    the same as JSON.

    dali-pipes doctor
    dali-pipes doctor data.train=/my/images     # and the storage that they are on

    Ends with status 0 if training on a GPU can work here, with 1 if it cannot.
    """
    # the doctor is for broken machines: if even PyTorch cannot be imported, one line says so
    with importing():
        from dali_pipes.tools.doctor.run import doctor
    sys.exit(not doctor(config))


# in the order of `dali-pipes --help`
JOBS: dict[str, Callable[..., Any]] = {
    job.__name__: job
    for job in (
        train,
        benchmark,
        scan,
        index,
        preview,
        prepare,
        diagnose,
        doctor,
    )
}


def describe(job: Callable[..., Any]) -> str:
    return inspect.getdoc(job) or ""


def _make_parser(job: Callable[..., Any]) -> argparse.ArgumentParser:
    name = f"dali-pipes {job.__name__}"
    return argparse.ArgumentParser(
        name, None, describe(job), formatter_class=argparse.RawTextHelpFormatter
    )


@contextlib.contextmanager
def _extra_for_training() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        install = "pip install 'dali_pipes[train]', or bash scripts/setup.sh train in a checkout"
        raise ConfigError(f"training needs {error.name}: {install}") from None
