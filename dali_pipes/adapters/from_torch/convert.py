"""from_torch(): makes a loader of a live DataLoader, or names the part that cannot be converted.

`Conversion.of` finds out what the parts do: samples, order, transform, collate function.
`from_torch` compares the result with the old loader, builds the new one from it, and returns a
`ConvertedLoader`, which has the interface of a DataLoader.
"""

from pathlib import Path
from typing import Any

import torch

from dali_pipes.adapters.from_torch.conversion import Conversion
from dali_pipes.adapters.from_torch.converted_loader import ConvertedLoader
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.checks import LARGEST_SEED
from dali_pipes.loader.build import build_loader
from dali_pipes.options import check_arguments
from dali_pipes.plan.plan import Rank


@check_arguments(seed=(0, LARGEST_SEED))
def from_torch(
    dataloader: Any,
    config: LoaderConfig | None = None,
    *,
    check: bool = True,
    rank: Rank | None = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    on_bad_sample: str = "raise",
    cache_dir: str | Path | None = None,
) -> ConvertedLoader:
    """Returns a loader that yields what `dataloader` yields.

    It has the same samples, batch size, rank and last batch, the same structure of batches, and the
    same distributions of order and transform. The data set is run for a few samples with true and
    with made-up pictures, and twice for all samples without decoding any, to see which files it
    opens and which transforms it calls. It is left as it was, as are all random states. What cannot
    be carried over is refused by name; nothing is left out or changed silently. docs/from_torch.md
    lists what can be carried over.

    Args:
        dataloader: a DataLoader whose data set opens one image file for each sample, or timm's
            PrefetchLoader around one.
        config: the backend; by default DALI, on the GPU if there is one.
        check: compare 64 samples with the old loader: pixels and labels of an evaluation,
            distributions of area, aspect ratio, position and flips of a training transform.
        rank: this process's part, for a sampler that knows no ranks; a DistributedSampler's own
            otherwise.
        seed: by default that of the DistributedSampler, of the generator, or of torch; 0 with
            `rank`.
        device, on_bad_sample: as for `build_loader`.
        cache_dir: folder in which the scan of these files is kept, and what the data set returned
            for each sample; by default each call reads the headers of all images and runs the data
            set for all samples. A call that is stopped goes on there the next time.

    Raises:
        NotConvertibleError: a part cannot be carried over; the text names it. It is a ConfigError.
    """
    config = config or DaliConfig()
    conversion = Conversion.of(dataloader, cache_dir, rank)
    order = conversion.order
    # timm's PrefetchLoader has a device, to which it moves its batches
    target = getattr(dataloader, "device", device) if device == "auto" else device
    found = conversion.compared(config, target) if check else "not checked"

    loader = build_loader(
        conversion.manifest,
        config,
        transform=conversion.transform,
        batch_size=order.batch_size,
        seed=order.seed if seed is None else seed,
        rank=order.rank,
        sampling=order.sampling,
        last_batch=order.last_batch,
        on_bad_sample=on_bad_sample,
        device=target,
        batch_transform=conversion.batch_transform,
    )
    return ConvertedLoader(loader, conversion, found)
