"""Who decodes an image on a GPU: its JPEG engine, its CUDA decoder, or the CPU.

Left alone, DALI's decoder sorts each batch by chroma subsampling and area, and gives the first
share of it to the engine (nvImageCodec 0.8.0, src/image_generic_decoder.cpp:113-146). Then the
other images of a batch decide which decoder makes an image's pixels, a batch of the engine may hold
several subsamplings, for which nvJPEG seems to take more than twice as long (docs/gpu-path.md), and
the engine and the CUDA decoder wait for each other at the end of every batch.

Here the plan decides, by what a scan knows of the image alone: how its JPEG is coded, and its size.
`choose_routes` makes the rule for a data set, and `Routes.choose` applies it. Each route has a
decoder of its own in the graph (graph.py), and all of them run at the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, islice, product
from itertools import count as count_from
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dali_pipes.backends.dali.config import DaliConfig
from dali_pipes.backends.dali.decoding import has_jpeg_engine
from dali_pipes.data.loose_images import LooseImages
from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ChoiceError

# Numbers of the routes; those from 1 on are the decoders that use the JPEG engine.
CUDA, CPU = 0, -1

# What the engine decodes (nvjpeg.h on NVJPEG_BACKEND_HARDWARE), as `Header.jpeg` has it. A gray
# JPEG with sampling factors other than 1 × 1 is not among them: of it the engine writes nothing,
# and reports success (docs/gpu-path.md).
ENGINE_DECODES = (b"4:2:0", b"4:4:4", b"4:2:2", b"4:4:0", b"gray")

# How many times as long as one of the engine's decoders a thread of the CUDA decoder takes for a
# pixel: on an H200 10 times without training, and 5 times beside it
# (docs/benchmarks/routed_graph_simulated_gpu_2026-11-28/measure.py).
_CUDA_TIMES = 7

# shares of the engine of which the best is taken if none is asked for
_LOADS = tuple(load / 100 for load in range(30, 95, 5))


class EnginePart(NamedTuple):
    """Images that the engine decodes, all of them coded alike.

    Attributes:
        coded: how, as `Header.jpeg` has it.
        size_from: the least size, as from `_sizes_of`.
        decoders: the numbers of the decoders that share them.
    """

    coded: bytes
    size_from: int
    decoders: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Routes:
    """The route of each image, which depends on the image alone. (Which of several decoders that
    are alike takes it does not, and changes no pixel.)

    Attributes:
        engine: the images that the engine decodes.
        cpu_below: an image that the engine does not decode and that is smaller than this, as from
            `_sizes_of`, is decoded by the CPU.
        engine_share, cpu_share: the shares of all images that these come to, about; None: not
            known.
        why_no_engine: why the engine gets none.
    """

    engine: tuple[EnginePart, ...] = ()
    cpu_below: int = 0
    engine_share: float | None = 0.0
    cpu_share: float = 0.0
    why_no_engine: str = ""

    @property
    def decoder_count(self) -> int:
        """How many decoders use the engine."""
        return sum(len(part.decoders) for part in self.engine)

    def choose(self, images: Manifest | LooseImages, ids: NDArray[np.int64]) -> NDArray[np.int8]:
        """(N,) the route of each of these images: `CUDA`, `CPU`, or the number of the engine's
        decoder, from 1 on.
        """
        jpegs = images.take_jpegs(ids)
        # of loose images all sizes have the same route
        sizes = 0 * ids if isinstance(images, LooseImages) else _sizes_of(images, ids)
        routes = np.where(sizes < self.cpu_below, CPU, CUDA).astype(np.int8)

        for coded, size_from, decoders in self.engine:
            (places,) = np.nonzero((jpegs == coded) & (sizes >= size_from))
            # the decoders of a part are alike, so they take turns within a batch
            routes[places] = np.resize(decoders, len(places))
        return routes

    def __str__(self) -> str:
        parts = ", ".join(
            f"{part.coded.decode()}{f' × {len(part.decoders)}' * (len(part.decoders) > 1)}"
            for part in self.engine
        )
        if self.engine_share is None:
            return f"the JPEG engine decodes every such JPEG: {parts}; the CUDA decoder the others"

        engine = f"the JPEG engine {self.engine_share:.0%} (decoders: {parts})"
        engine = engine if parts else f"the JPEG engine none ({self.why_no_engine})"
        cuda = f"the CUDA decoder {1 - self.engine_share - self.cpu_share:.0%} of the images"
        return f"{cuda}, {engine}{f', the CPU {self.cpu_share:.0%}' * (self.cpu_share > 0)}"

    @property
    def mix(self) -> str:
        """What decides about the bits of an image's pixels, for `Description.pixels`."""
        parts = [f"{part.coded.decode()} from {_describe(part.size_from)}" for part in self.engine]
        return f"engine {', '.join(parts) or 'none'}, CPU below {_describe(self.cpu_below)}"


def choose_routes(images: Manifest | LooseImages, config: DaliConfig, device_id: int = 0) -> Routes:
    """The rule for a data set: the engine decodes `hw_decoder_load` of its images, the largest of
    each coding, unless fewer are coded in a way that one of its decoders has; the CPU decodes the
    smallest of the others. Where that share is left open, it is the one by which a batch should be
    ready first.

    Args:
        device_id: the GPU.

    Raises:
        ChoiceError: `cpu_share` for images of which nobody knows what will come.
    """
    if isinstance(images, LooseImages):
        return _choose_for_loose(config, device_id)
    if not len(images):
        return Routes(why_no_engine="there are no images")

    ids = images.some_ids
    sizes, jpegs = _sizes_of(images, ids), images.take_jpegs(ids)
    parts: tuple[EnginePart, ...] = ()
    why = _why_no_engine(config, device_id)
    if not why:
        parts = _choose_parts(sizes, jpegs, config)
        why = "" if parts else "no image is left for it that it decodes"

    routes = Routes(parts, why_no_engine=why)
    others = np.sort(sizes[routes.choose(images, ids) == CUDA])
    on_cpu = min(round(config.cpu_share * len(ids)), len(others))
    # sizes are whole numbers: with one more, the largest of them is below it too
    below = int(others[on_cpu - 1]) + 1 if on_cpu else 0
    return Routes(parts, below, 1 - len(others) / len(ids), on_cpu / len(ids), why)


def _choose_for_loose(config: DaliConfig, device_id: int) -> Routes:
    """The rule for images that come one after the other, each with its header."""
    if config.cpu_share:
        raise ChoiceError(
            type(config),
            "takes cpu_share only for images that a scan has read, since it gives the CPU the "
            "smallest of all; leave it at 0",
        )
    if why := _why_no_engine(config, device_id):
        return Routes(why_no_engine=why)
    # 4:2:0 is how most cameras and programs code a JPEG
    decoders = tuple(range(1, 1 + config.usual_engine_decoders))
    return Routes((EnginePart(b"4:2:0", 0, decoders),), engine_share=None)


def _why_no_engine(config: DaliConfig, device_id: int) -> str:
    if not config.engine_load:
        return "exact" if config.exact else "hw_decoder_load=0"
    return "" if has_jpeg_engine(device_id) else "this GPU has none"


def _sizes_of(images: Manifest, ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """(N,) by which images are ordered: pixels, and for equally many the bytes of the file."""
    pixels = images.take_sizes(ids).prod(axis=1)
    return pixels * 2**32 + images.take_bytes(ids).clip(0, 2**32 - 1)


def _describe(size: int) -> str:
    return f"{size >> 32} pixels and {size & 2**32 - 1} bytes"


def _choose_parts(
    sizes: NDArray[np.int64], jpegs: NDArray[np.bytes_], config: DaliConfig
) -> tuple[EnginePart, ...]:
    """The parts for images like these: of all ways to give the engine's decoders a coding each, and
    of all shares, those by which a batch should be ready first.

    Every batch of a decoder has one coding. Where one coding is much more frequent than the others,
    several decoders have the same.
    """
    loads = _LOADS if config.hw_decoder_load is None else (config.hw_decoder_load,)
    of_engine = [round(min(load, 1 - config.cpu_share) * len(sizes)) for load in loads]
    by_coding = {coded: np.sort(sizes[jpegs == coded])[::-1] for coded in ENGINE_DECODES}
    codings = [coded for coded, found in by_coding.items() if len(found)]

    # pixels are what the sizes are first; of the largest 0, 1, 2, … of each coding, and of all that
    # are left for the two decoders of the GPU, if the CPU takes the smallest
    pixels = {coded: np.append(0, (by_coding[coded] >> 32).cumsum()) for coded in codings}
    on_gpu = int((np.sort(sizes)[round(config.cpu_share * len(sizes)) :] >> 32).sum())

    # times are in pixels of one decoder of the engine
    best_time = (np.inf, np.inf)
    best_counts: dict[bytes, tuple[int, int]] = {}  # how many images, for how many decoders
    choices = combinations_with_replacement(codings, config.usual_engine_decoders)
    for choice, wanted in product(choices, of_engine):
        counts = _share_out(wanted, choice, by_coding)
        taken = {coded: int(pixels[coded][count]) for coded, count in counts.items()}
        engine = max(taken[coded] / choice.count(coded) for coded in counts)
        cuda = max(on_gpu - sum(taken.values()), 0) * _CUDA_TIMES / (config.num_threads or 1)
        # of those that are equally soon, the one that leaves least to the CUDA decoder, whose
        # Huffman decoding the CPU does
        if (max(engine, cuda), cuda) < best_time:
            best_time = max(engine, cuda), cuda
            best_counts = {
                coded: (count, choice.count(coded)) for coded, count in counts.items() if count
            }

    parts, numbers = [], count_from(1)
    for coded, (count, decoders) in best_counts.items():
        least = int(by_coding[coded][count - 1])
        parts.append(EnginePart(coded, least, tuple(islice(numbers, decoders))))
    return tuple(parts)


def _share_out(
    count: int, choice: Sequence[bytes], by_coding: dict[bytes, NDArray[np.int64]]
) -> dict[bytes, int]:
    """How many of `count` images each coding of this choice has: equally many for every decoder, or
    all that there are.
    """
    shares, left = {}, len(choice)
    # those first of which there are the fewest for each decoder, so that the others get the rest
    for coded in sorted(set(choice), key=lambda each: len(by_coding[each]) / choice.count(each)):
        decoders = choice.count(coded)
        shares[coded] = min(len(by_coding[coded]), round(count * decoders / left))
        count, left = count - shares[coded], left - decoders
    return shares
