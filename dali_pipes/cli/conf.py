"""The folders of configurations, and the schema of every file in them.

There is our own conf/, of the checkout or of the installed package, and there may be one of the
user's, which comes first. `register` makes the schemas known to Hydra.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from dali_pipes.backends.registry import list_backends
from dali_pipes.cli.named_options import NAMED_OPTIONS, store_named_options
from dali_pipes.cli.overrides import text_options
from dali_pipes.data.config import DataConfig
from dali_pipes.data.objects import Targets
from dali_pipes.errors import ConfigError
from dali_pipes.measure.arms import ARMS
from dali_pipes.plan.sampling import SAMPLINGS
from dali_pipes.plan.transforms import TRANSFORMS
from dali_pipes.tools.benchmark.config import BenchmarkConfig
from dali_pipes.tools.diagnosis.config import DiagnoseConfig
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.preparation.config import PrepareConfig
from dali_pipes.tools.preview.run import PreviewConfig
from dali_pipes.tools.scan.run import ScanConfig
from dali_pipes.training.config import ModelConfig, OptimizerConfig, ScheduleConfig, TrainConfig

PACKAGE = Path(__file__).resolve().parents[1]
MARKER = ".dali_pipes"  # an empty file that says that a folder of configurations is for us
SUBFOLDER = "dali_pipes"  # the folder for us within the conf/ of another program
_SHARED = "output_subdir: null"  # what conf/job.yaml says, which all primary files share


def checkout() -> Path | None:
    """Returns the checkout that the package is imported from; None if it is installed."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "conf").is_dir() else None


def conf_folder() -> Path:
    """Returns the folder of our configurations: that of the checkout, or that of the wheel."""
    return (checkout() or PACKAGE) / "conf"


def find_user_folder(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Returns the folder of the user's own configurations, and the words without `--conf DIR`.

    The folder is DIR, or conf/ in the working directory if it is for us, or conf/dali_pipes.

    Raises:
        ConfigError: DIR is no folder, or is missing.
    """
    # argparse would print its usage besides the error, and a mistake takes one line here
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--conf", type=lambda text: Path(text).expanduser())
    try:
        arguments, others = parser.parse_known_args(words)
    except argparse.ArgumentError:
        raise ConfigError("--conf needs a folder: --conf DIR") from None

    folder, here = arguments.conf, Path("conf")
    if folder and not folder.is_dir():
        raise ConfigError(f"--conf {folder}: no such folder")
    folders = (
        [folder]
        if folder
        else [
            folder
            for folder in (here, here / SUBFOLDER)
            if folder.is_dir() and _extends_ours(folder)
        ]
    )

    # in a checkout conf/ is ours, not the user's
    own = [folder.absolute() for folder in folders if folder.resolve() != conf_folder()]
    return own[0] if own else None, others


def find_foreign_folder() -> Path | None:
    """Returns conf/ in the working directory if it belongs to another program, such as the user's
    own Hydra project; None otherwise.
    """
    here = Path("conf")
    return (
        here.absolute()
        if here.is_dir() and here.resolve() != conf_folder() and not _extends_ours(here)
        else None
    )


def _extends_ours(folder: Path) -> bool:
    """Returns whether a folder of configurations is for us: by its name, by the marker, or by what
    its files extend.

    A file for dali_pipes names one of its schemas, as in `defaults: [torch_schema, _self_]`. If one
    of the primary files, those in the folder itself, does not, then the folder is another
    program's: a primary file with a job's name would replace ours.
    """
    if folder.name == SUBFOLDER or (folder / MARKER).exists():
        return True
    if primary := [*folder.glob("*.yaml")]:
        return all(_extends_schema(file, JOBS) or _is_shared(file) for file in primary)

    options = [*folder.glob("*/*.yaml")]
    # experiments name no schema, and without a primary file no other program can use them
    if all(file.parent.name == "experiment" for file in options):
        return True
    arms = (arm.config.name for arm in ARMS)
    ours = (*TRANSFORMS, *SAMPLINGS, *list_backends(), *arms)
    return any(_extends_schema(file, ours) for file in options)


def _extends_schema(file: Path, ours: Iterable[str]) -> bool:
    """Returns whether a configuration file names the schema of one of `ours`."""
    words = re.findall(r"\w+_schema\b", _read(file))
    return any(word.removesuffix("_schema") in ours for word in words)


def is_arm(name: str) -> bool:
    """Returns whether the group `arm` has an option of this name."""
    return name in NAMED_OPTIONS["arm"] or (conf_folder() / f"arm/{name}.yaml").is_file()


def _is_shared(file: Path) -> bool:
    """Returns whether this is a copy of our conf/job.yaml, which has no schema."""
    return file.name == "job.yaml" and _SHARED in _read(file)


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def demo_images() -> Path:
    return (checkout() or Path.cwd()) / "data/demo"


# the options of each job by its name, which is the name of its file in conf/
JOBS: dict[str, Any] = {
    "scan": ScanConfig,
    "preview": PreviewConfig,
    "benchmark": BenchmarkConfig,
    "train": TrainConfig,
    "diagnose": DiagnoseConfig,
    "doctor": DoctorConfig,
    "prepare": PrepareConfig,
}


def texts_of(job: str) -> dict[str, bool]:
    """Returns the options of a job that are text, each with whether it is a list of texts."""
    of_loaders = (
        option for config in list_backends().values() for option in text_options(config, "loader.")
    )
    return dict([*text_options(JOBS.get(job, PreviewConfig)), *of_loaders])


def register(users: Path | None = None) -> None:
    """Makes the schemas, the named options and the resolver of conf/ known to Hydra.

    Args:
        users: the folder of the user's own configurations.
    """
    OmegaConf.register_new_resolver("demo_images", lambda: str(demo_images()), replace=True)

    # conf/GROUP/NAME.yaml has NAME_schema in its defaults, and Hydra checks its options by it
    store = ConfigStore.instance()
    for name, job in JOBS.items():
        store.store(name=f"{name}_schema", node=_with_keys(job, "logger_options"))
    for group, options in (
        ("data", DataConfig),
        ("model", _with_keys(ModelConfig, "options")),
        ("optimizer", _with_keys(OptimizerConfig, "lr_scale")),
        ("schedule", ScheduleConfig),
    ):
        store.store(group=group, name="schema", node=options)
    for name, transform in TRANSFORMS.items():
        store.store(group="transform", name=f"{name}_schema", node=_with_keys(transform, "sizes"))
    for name, sampling in SAMPLINGS.items():
        store.store(group="sampling", name=f"{name}_schema", node=_with_keys(sampling, "schedule"))
    for name, config in list_backends().items():
        store.store(group="loader", name=f"{name}_schema", node=config)
    for arm in ARMS:
        store.store(group="arm", name=f"{arm.config.name}_schema", node=arm.config)
    store_named_options(users)


def _with_keys(schema: type, *names: str) -> Any:
    """Returns the schema; its options of these names, mappings such as one by epoch, take new keys.

    Hydra refuses keys that are not in a structured config otherwise.
    """
    node = OmegaConf.structured(schema)
    for name in names:
        option = OmegaConf.select(node, name)
        if option is not None:
            OmegaConf.set_struct(option, False)
    return node


def read_targets(texts: Iterable[str]) -> Targets:
    """Reads targets from options such as text=.txt, boxes=boxes, keypoint_names=[nose,tail].

    Raises:
        ConfigError: a name is unknown, or a value is missing or cannot be read.
    """
    names = [field.name for field in fields(Targets)]
    values: dict[Any, Any] = {}

    for text in texts:
        name, _, value = text.partition("=")
        if name not in names or not value:
            raise ConfigError(
                f"--target {text}: it takes NAME=VALUE, such as text=.txt; the names are "
                f"{', '.join(names)}"
            )
        try:
            values |= dict(OmegaConf.to_container(OmegaConf.from_dotlist([text])))  # type: ignore[arg-type]
        except Exception as error:  # any error of YAML or OmegaConf
            raise ConfigError(
                f"--target {text}: its value cannot be read ({' '.join(str(error).split())})"
            ) from None

    return Targets(**values)
