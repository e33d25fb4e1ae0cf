"""Checks a loader's decoding against the CPU's.

`check_decoding` decodes some images of a manifest with a loader's options and on the CPU, and
compares them. It does so in a separate process (decoding_compare.py), since decoders may crash or
hang.
"""

import re
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dali_pipes.backends.dali.config import DaliOptions
from dali_pipes.data.manifest import Manifest
from dali_pipes.system.child import in_child

IMAGES = 500  # how many are decoded, at most
LIMIT_S = 120.0
_COMPARE = "dali_pipes.tools.doctor.decoding_compare:compare"
IDLE_BELOW = 0.01  # use of the JPEG engines above this is not noise

# a line on stderr as nvImageCodec writes it (src/default_debug_messenger.h), maybe with a color
_MESSAGE = re.compile(r"\[(WARNING|ERROR|FATAL ERROR)\] (?:\x1b\[[0-9;]*m)?\[([\w-]+)\] (.*)")
_LAST_ON_GPU = "nvjpeg_cuda_decoder"  # what it rejects goes to the CPU
# beginnings of warnings that reject no image; the second: "… not available. Skip preallocation"
_HARMLESS = ("Fancy upsampling enabled", "nvjpegBuffer")


# the documents say it in the same words
PARTS_ON_GPU = "nvJPEG may deliver the part that is there of a truncated JPEG"


class Message(NamedTuple):
    """A message of nvImageCodec about an image: severity, decoder and text."""

    severity: str
    decoder: str
    text: str


@dataclass(frozen=True, slots=True)
class ComparedDecoding:
    """What differs between images decoded with a loader's options and on the CPU."""

    images: int  # how many both have decoded
    mean: float  # |difference| from the CPU's pixels, of 255, over all images
    # names of images that differ by more than the bound, with their mean |difference|
    far: dict[str, float]
    refused: list[str]  # names of images that only the CPU decodes
    accepted: list[str]  # names of images that only the CPU refuses
    cpu_ms: float  # CPU time per image with these options
    cpu_ms_on_cpu: float  # and with those of a loader on the CPU
    engine_load: float  # the share of a batch that is given to the JPEG engines; 0 on the CPU
    nvjpg: float | None  # highest use of the JPEG engines, 0 to 1; None: unknown
    sm: float | None  # the same of the multiprocessors
    digest: str  # of all pixels; equal digests are equal bits
    decodes: str  # how the loader decodes, in one line
    # messages of nvImageCodec about images that it decoded on the CPU, and how often
    fallbacks: dict[str, int]

    def faults(self) -> list[str]:
        """Describes each fault in a few words; an empty list if everything is as on the CPU."""
        faults = []

        # decoded on the CPU: nvImageCodec says so, or the cost of the CPU gives it away
        if self.fallbacks:
            text, count = max(self.fallbacks.items(), key=lambda one: one[1])
            faults.append(f"decoded on the CPU, at least {count} × nvImageCodec: {text}")
        elif self._costs_what_the_cpu_costs:
            faults.append(
                f"decoded on the CPU, as it seems: it takes {self.cpu_ms:.2f} CPU-ms an "
                "image, a loader on the CPU "
                f"{self.cpu_ms_on_cpu:.2f}, and the counter of the JPEG engines stayed at "
                f"{self.nvjpg:.0%}"
            )

        # other pixels, or none
        if self.far:
            name, mean = max(self.far.items(), key=lambda one: one[1])
            faults.append(
                f"{len(self.far)} of {self.images} images have other pixels than on the CPU, "
                f"{name} by {mean:.1f} of 255"
            )
        if self.refused:
            faults.append(
                f"{len(self.refused)} images are refused that the CPU decodes, such as "
                f"{self.refused[0]}"
            )
        return faults

    def doubts(self) -> list[str]:
        """Describes what differs from the CPU without being wrong."""
        if not self.accepted:
            return []

        some = (
            f"{len(self.accepted)} damaged images are delivered that the CPU refuses, such as "
            f"{self.accepted[0]}"
        )
        return [f"{some}: {PARTS_ON_GPU}"]

    @property
    def _costs_what_the_cpu_costs(self) -> bool:
        """Whether the JPEG engines were given work and stayed idle, while the CPU did as much as
        for a loader that also resizes there.

        This finds only what is beyond doubt: decoding alone takes 0.5 of that CPU time for regions
        and 0.8 for whole images (docs/doctor.md), but the Huffman decoding for nvJPEG's CUDA
        decoder may cost as much. Where the engines' counter cannot be read, CPU time proves
        nothing.
        """
        still = self.nvjpg is not None and self.nvjpg <= IDLE_BELOW
        return still and self.engine_load > 0 and self.cpu_ms >= self.cpu_ms_on_cpu


def check_decoding(
    manifest: Manifest,
    exif: str,
    config: DaliOptions,
    batch_size: int,
    device: torch.device,
    limit_s: float = LIMIT_S,
) -> ComparedDecoding:
    """Decodes random regions of at most `IMAGES` images spread over the manifest, with this config
    and on the CPU, and compares them image by image.

    Raises:
        ChildError: the process crashed, hung or raised.
    """
    ids = np.unique(np.linspace(0, len(manifest) - 1, IMAGES).astype(np.int64))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "images.parquet")
        manifest.subset(ids).save(file)
        job = str(file), exif, asdict(config), batch_size, str(device)
        compared, output = in_child(_COMPARE, limit_s, *job)
    return ComparedDecoding(**compared, fallbacks=dict(Counter(cpu_fallbacks(messages(output)))))


def messages(output: str) -> list[Message]:
    """The messages of nvImageCodec in what a process wrote to stderr, without colors."""
    return [Message(*fields) for fields in _MESSAGE.findall(output)]


def cpu_fallbacks(all_messages: list[Message]) -> list[str]:
    """The reasons why images were not decoded on the GPU.

    Only warnings count: an ERROR is about a damaged image, which no decoder accepts.
    """
    return [
        message.text
        for message in all_messages
        if (message.severity, message.decoder) == ("WARNING", _LAST_ON_GPU)
        and not message.text.startswith(_HARMLESS)
    ]
