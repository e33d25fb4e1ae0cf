"""A backend of another package: one module, one row, one entry point
(tests/backends/test_registry.py installs it).
"""

from dataclasses import dataclass

from dali_pipes.backends.backend import Backend, Decoded, Description
from dali_pipes.backends.config import LoaderConfig
from dali_pipes.backends.needs import EVERYTHING
from dali_pipes.backends.pixels.decode import decode
from dali_pipes.backends.pixels.finish import View, write_views


@dataclass(kw_only=True, slots=True)
class ToyConfig(LoaderConfig):
    """
    Attributes:
        patience: how often a file is read.
    """

    name = "toy"
    backend = "toy_backend:ToyBackend"

    patience: int = 1


class ToyBackend(Backend):
    makes = EVERYTHING - {"views", "exif"}

    def prepare(self):
        self._view = View(self.job.transform)

    def describe(self):
        return Description("Pillow decodes one image after the other")

    def stream(self, planned):
        for batch in planned:
            images = self._view.empty(len(batch), batch.shape)
            for at, number in enumerate(batch.ids):
                encoded, name = batch.images.read(number), batch.images.name(number)
                form = {"channels": self.job.transform.channels}
                pixels = decode("pil", encoded, name, batch.source[at], **form)
                write_views(pixels, [self._view], batch, at, [images.split(1)])
            yield Decoded(batch, (images.to(self.job.device),))
