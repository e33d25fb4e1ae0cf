"""A backend of another package: one module, one row, one entry point
(tests/backends/test_registry.py installs it).
"""

from dataclasses import dataclass

import numpy as np
import torch

from dali_pipes.backends.base import Backend, DecodedBatch
from dali_pipes.backends.common import pillow
from dali_pipes.backends.common.pixels import Normalizer
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.registry import BackendEntry


@dataclass(kw_only=True, slots=True)
class ToyConfig(LoaderConfig):
    """
    Attributes:
        patience: how often a file is read.
    """

    patience: int = 1


class ToyBackend(Backend):
    def _prepare(self):
        self._normalize = Normalizer(self._transform)

    def explain(self):
        return "Pillow decodes one image after the other"

    def stream(self, rows):
        for planned in rows:
            images = np.stack([self._image(planned, at) for at in range(len(planned))])
            finished = self._normalize(
                torch.from_numpy(images).permute(0, 3, 1, 2),
                torch.from_numpy(planned.augmentation.erased),
            )
            yield (
                planned,
                DecodedBatch(
                    finished.to(self._device), torch.from_numpy(planned.ids).to(self._device)
                ),
            )

    def _image(self, planned, at):
        encoded, name = self._manifest.read(planned.ids[at]), self._manifest.name(planned.ids[at])
        (pixels,) = pillow.read(
            encoded, name, [pillow.View(self._transform, planned.geometry.take(at), planned.shape)]
        )
        return pixels


ENTRY = BackendEntry(name="toy", config=ToyConfig, backend="toy_backend:ToyBackend")
