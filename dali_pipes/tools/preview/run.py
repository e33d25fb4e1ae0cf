"""Shows people what a loader yields: its speed, its order, and a picture of the first batch."""

import hashlib
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dali_pipes.checks import check_choice, check_int
from dali_pipes.data.config import SPLITS, DataConfig
from dali_pipes.data.images import open_images
from dali_pipes.loader.build import build_loader
from dali_pipes.options import check_options, option
from dali_pipes.system.progress import track


@dataclass(kw_only=True, slots=True)
class PreviewConfig:
    """dali-pipes preview: batches of one loader, to see what it yields.

    Attributes:
        sampling: which samples, and in which order (docs/sampling.md); None: as the transform has
            it.
        split: "train" or "val".
        batch_size: images per batch.
        seed: of the order of the samples and all random choices.
        batches: how many; None: a whole epoch.
        out: folder for the picture of the first images.
    """

    data: DataConfig = field(default_factory=DataConfig)
    transform: Any = None
    sampling: Any = None
    loader: Any = None
    split: str = option("train", check_choice, SPLITS)
    batch_size: int = option(64, check_int, 1)
    seed: int = option(0, check_int, 0)
    batches: int | None = option(None, check_int, 1)
    out: str = "runs/preview"

    def __post_init__(self) -> None:
        check_options(self)


def preview(config: PreviewConfig) -> None:
    """Loads some batches, prints what they are, and saves a picture of the first images.

    The printed order is a hash of the sample ids in order: it is the same for every loader that
    carries out the same plan.
    """
    # it imports torchvision, for seconds, and other jobs know the options of this one
    from dali_pipes.tools.preview.picture import save_picture

    console = Console(soft_wrap=True)
    Path(config.out).mkdir(parents=True, exist_ok=True)
    manifest = open_images(config.data, config.split)

    with build_loader(
        manifest,
        config.loader,
        transform=config.transform,
        batch_size=config.batch_size,
        seed=config.seed,
        sampling=config.sampling,
        last_batch="partial",
        max_bad_fraction=1,  # show the good images, however few they are
    ) as loader:
        total = min(config.batches or len(loader), len(loader))
        digest, images, start = hashlib.sha256(), 0, time.perf_counter()

        for number, batch in enumerate(track(itertools.islice(loader, total), "loading", total)):
            if number == 0:
                console.print(f"first batch: {batch}", highlight=False)
                picture = Path(config.out) / "batch.png"
                save_picture(batch, config.transform, manifest.classes, picture)
            # ids only, since pixels differ from decoder to decoder
            digest.update(batch.ids.cpu().numpy().tobytes())
            images += len(batch)
        seconds = time.perf_counter() - start

    console.print(
        f"{images:,} of {len(manifest):,} images in {total:,} batches, {images / seconds:,.0f} "
        "images/s with start-up"
    )
    console.print(f"order: {digest.hexdigest()[:16]}", highlight=False)
    console.print(f"picture: {picture}", markup=False)
