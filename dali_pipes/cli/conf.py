"""conf/: where it lies in a checkout, in an installed package and as a folder of the user's own,
and the schema of every file.
"""

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from dali_pipes.backends.registry import backends
from dali_pipes.cli.overrides import text_options
from dali_pipes.data.config import DataConfig
from dali_pipes.data.objects import Targets
from dali_pipes.errors import ConfigError
from dali_pipes.measure.workload import TRANSFORMS
from dali_pipes.plan.sampling import SAMPLINGS
from dali_pipes.tools.benchmark.config import BenchmarkConfig, MigrateConfig
from dali_pipes.tools.diagnosis.config import DiagnoseConfig
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.predict.config import PredictConfig
from dali_pipes.tools.preparation.config import PrepareConfig
from dali_pipes.tools.preview.run import PreviewConfig
from dali_pipes.tools.scan.run import ScanConfig
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.training.config import ModelConfig, OptimizerConfig, TrainConfig

PACKAGE = Path(__file__).resolve().parents[1]
MARKER = ".dali_pipes"  # an empty file: this folder of configurations is for us
WITHIN = "dali_pipes"  # in the conf/ of another program, the folder that is for us


def checkout() -> Path | None:
    """The checkout that the package is imported from; None: it is installed."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() and (root / "conf").is_dir() else None


def conf_folder() -> Path:
    """Our configurations: those of the checkout, or those that the wheel brings."""
    return (checkout() or PACKAGE) / "conf"


def users_folder(words: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The user's own configurations, and the words without `--conf DIR`.

    That is DIR, or conf/ in the working directory if it is for us, or conf/dali_pipes.

    Raises:
        ConfigError: there is no such folder.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--conf", type=lambda text: Path(text).expanduser())
    try:
        given, others = parser.parse_known_args(words)
    except argparse.ArgumentError:
        raise ConfigError("--conf needs a folder: --conf DIR") from None
    if given.conf and not given.conf.is_dir():
        raise ConfigError(f"--conf {given.conf}: no such folder")
    here = Path("conf")
    found = (
        [given.conf]
        if given.conf
        else [each for each in (here, here / WITHIN) if each.is_dir() and _is_for_us(each)]
    )
    own = [each.absolute() for each in found if each.resolve() != conf_folder()]
    return own[0] if own else None, others


def others_folder() -> Path | None:
    """conf/ in the working directory, if it is another program's; the user's own Hydra project has
    one.
    """
    here = Path("conf")
    return (
        here.absolute()
        if here.is_dir() and here.resolve() != conf_folder() and not _is_for_us(here)
        else None
    )


def _is_for_us(folder: Path) -> bool:
    """Whether a folder of configurations says so: by its name, by the marker, or by what its files
    extend.

    A file of ours names its schema, as in `defaults: [torch_schema, _self_]`. Among the primary
    files, which lie in the folder itself, a single one without makes it another program's: a
    primary file of a job's name would come in the place of ours.
    """
    if folder.name == WITHIN or (folder / MARKER).exists():
        return True
    if primary := [*folder.glob("*.yaml")]:
        return all(_extends(file, JOBS) for file in primary)
    options = [*folder.glob("*/*.yaml")]
    # without a primary file these are no other program's
    if all(file.parent.name == "experiment" for file in options):
        return True
    return any(_extends(file, (*TRANSFORMS, *SAMPLINGS, *backends())) for file in options)


def _extends(file: Path, ours: Iterable[str]) -> bool:
    """Whether a file of configurations names the schema of one of ours."""
    try:
        words = re.findall(r"\w+_schema\b", file.read_text(errors="replace"))
    except OSError:
        return False
    return any(word.removesuffix("_schema") in ours for word in words)


def tuned_loaders(users: Path | None) -> Path:
    """Where `tune` writes loader=tuned_HOST and the next job finds it."""
    if users is None and checkout() is None and others_folder():
        return _home() / "conf" / WITHIN / "loader"
    return (users or _home() / "conf") / "loader"


def demo_images() -> Path:
    return _home() / "data/demo"


def _home() -> Path:
    return checkout() or Path.cwd()


JOBS: dict[str, Any] = {  # the options of each job by its name, which is that of its file
    each.__name__.removesuffix("Config").lower(): each
    for each in (
        *(
            ScanConfig,
            PreviewConfig,
            BenchmarkConfig,
            MigrateConfig,
            TrainConfig,
            PredictConfig,
            DiagnoseConfig,
            DoctorConfig,
        ),
        *(TuneConfig, PrepareConfig),
    )
}


def texts_of(job: str) -> dict[str, bool]:
    """The options of a job that are text, and whether they are lists of texts."""
    of_loaders = (
        option for entry in backends().values() for option in text_options(entry.config, "loader.")
    )
    return dict([*text_options(JOBS.get(job, PreviewConfig)), *of_loaders])


def register(users: Path | None = None) -> None:
    """Makes the schemas and the resolvers of conf/ known to Hydra; `users` is the user's own folder
    of configurations.
    """
    OmegaConf.register_new_resolver(
        "tuned_loaders", lambda: str(tuned_loaders(users)), replace=True
    )
    OmegaConf.register_new_resolver("demo_images", lambda: str(demo_images()), replace=True)
    store = ConfigStore.instance()
    for name, job in JOBS.items():
        store.store(name=f"{name}_schema", node=job)
    for group, options in (
        ("data", DataConfig),
        ("model", ModelConfig),
        ("optimizer", OptimizerConfig),
    ):
        store.store(group=group, name="schema", node=options)
    for name, transform in TRANSFORMS.items():
        store.store(group="transform", name=f"{name}_schema", node=_with_epochs(transform, "sizes"))
    for name, sampling in SAMPLINGS.items():
        store.store(
            group="sampling", name=f"{name}_schema", node=_with_epochs(sampling, "schedule")
        )
    for name, entry in backends().items():
        store.store(group="loader", name=f"{name}_schema", node=entry.config)


def _with_epochs(schema: type, name: str) -> Any:
    """The schema; its option of this name, if it has it, takes epochs that are not in it yet, which
    Hydra refuses otherwise.
    """
    node = OmegaConf.structured(schema)
    if name in node:
        OmegaConf.set_struct(node[name], False)
    return node


def read_targets(given: Iterable[str]) -> Targets:
    """Targets as options have them: text=.txt, boxes=boxes, keypoint_names=[nose,tail].

    Raises:
        ConfigError: one has no such name, or no value that can be read.
    """
    names = [each.name for each in fields(Targets)]
    values: dict[Any, Any] = {}
    for text in given:
        name, _, value = text.partition("=")
        if name not in names or not value:
            raise ConfigError(
                f"--target {text}: it takes NAME=VALUE, such as text=.txt; the names are "
                f"{', '.join(names)}"
            )
        try:
            values |= dict(OmegaConf.to_container(OmegaConf.from_dotlist([text])))  # type: ignore[arg-type]
        except Exception as error:  # of YAML
            raise ConfigError(
                f"--target {text}: its value cannot be read ({' '.join(str(error).split())})"
            ) from None
    return Targets(**values)
