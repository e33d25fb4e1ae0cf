"""The measurement of a setting: the images, the workload, and the trials of the benchmark."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from dali_pipes.data.images import open_images, repeat_epoch, sample_images, warm_page_cache
from dali_pipes.measure.agreement import gate
from dali_pipes.measure.figures import Trial
from dali_pipes.measure.protocol import Trials
from dali_pipes.measure.workload import Workload, to_dict
from dali_pipes.system.files import new_folder
from dali_pipes.system.provenance import provenance
from dali_pipes.tools.tuning.config import TuneConfig
from dali_pipes.tools.tuning.settings import Setting
from dali_pipes.training.models import check_model, default_model


class Bench:
    """Reads the images and makes the run's folder.

    Attributes:
        folder: folder of this run.
        run: measures one trial of a setting, in a fresh process.
    """

    def __init__(self, config: TuneConfig):
        self._config, benchmark = config, config.benchmark({"default": config.loader})
        network = check_model(config.model.name or default_model())
        self._manifest = sample_images(open_images(config.data, "train"), config.images, config.seed)
        warm_page_cache(self._manifest)
        self.folder = new_folder(Path(config.out))
        self._epoch = repeat_epoch(self._manifest)
        self._epoch.save(self.folder / "manifest.parquet")
        model = network if config.workload == "train" else None
        manifest = str(self.folder / "manifest.parquet")
        self._work = Workload(manifest, config.transform, config.batch_size, config.seed, config.workload, model)
        self._trials = Trials(self._work, self._manifest, benchmark, self.folder / "trials")

    def run(self, setting: Setting, arm: str, phase: str, number: int) -> Trial:
        """
        Raises:
            ArmError: the process failed.
        """
        loader = to_dict(setting.applied_to(self._config.loader))
        return self._trials.run(arm, loader, phase, number, setting.batch_size)

    def agreement(self, default: Setting, winner: Setting) -> dict[str, Any]:
        """
        Raises:
            ArmError: the two deliver different samples or pixels.
        """
        loaders = {"default": default.applied_to(self._config.loader), "tuned": winner.applied_to(self._config.loader)}
        work = replace(self._work, batch_size=winner.batch_size)
        return gate(self._config.benchmark(loaders), work, loaders, self._trials.cpus, self.folder / "samples")

    def facts(self) -> dict[str, Any]:
        """`work`, `protocol` and `provenance` of a result."""
        config = self._config
        names = ("minutes", "pairs", "min_seconds", "min_batches", "max_warmup_seconds", "images", "agreement_images", "seed")
        work = self._work.to_dict() | {"manifest": "manifest.parquet", "epoch": len(self._epoch), "loader": to_dict(config.loader)}
        return {
            "work": work,
            "protocol": {name: getattr(config, name) for name in names} | {"cpus": len(self._trials.cpus)},
            "provenance": provenance(self._manifest.describe(), config.overrides),
        }
