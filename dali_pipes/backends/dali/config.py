"""The options of DALI.

`DaliOptions` are those of every loader that decodes with it: `DaliConfig` here, and the arms
`native` and `decoding` of a comparison (measure/arms).
"""

from dataclasses import dataclass, replace
from typing import Self

import torch

from dali_pipes.backends.config import MAX_COUNT, Concurrency, LoaderConfig
from dali_pipes.checks import check_choice, check_int, check_number
from dali_pipes.errors import ConfigError
from dali_pipes.options import option
from dali_pipes.system.cpus import parse_cpus
from dali_pipes.system.cuda import cuda_extra

DECODE = ("auto", "region", "whole", "force_region")
RESIZE = ("torch", "dali")
USUAL_LOAD = 0.6  # what a balance of the decoders comes to, about


def _check_cpus(option: str, value: str | None) -> None:
    try:
        parse_cpus("0" if value in (None, "gpu") else str(value))
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}; or gpu") from None


@dataclass(kw_only=True, slots=True)
class DaliOptions(LoaderConfig):
    """How DALI reads and decodes images. Options keep DALI's names.

    Attributes:
        device: "gpu" decodes with nvJPEG and transforms on the GPU, "cpu" does all on the CPU,
            "auto" takes a GPU if there is one.
        num_threads: CPU threads; None: all that this process may use.
        prefetch_queue_depth: batches in flight. None: 4 on a GPU, so that training waits less for a
            slow one, else 2.
        hw_decoder_load: share of each batch that goes to the hardware JPEG engine, GPU only.
        exact: does not use the GPU's hardware JPEG engine (hw_decoder_load=0), whose pixels differ
            slightly from those of nvJPEG's CUDA decoder. Then an image has the same pixels bit for
            bit on any number of GPUs, and after a resume.
        decode: "region" decodes only the planned region; "whole" decodes the image and cuts the
            region out. "auto" decodes regions, except on a GPU with libraries that are known to
            decode them wrongly or on the CPU (docs/gpu-path.md). "force_region" always decodes
            regions, even with known faults, unless `exact` is on and they would break it.
        jpeg_fancy_upsampling: chroma upsampling as libjpeg does it, GPU only (the CPU always does);
            without it pixels differ.
        hybrid_huffman_threshold: pixels from which on the GPU does the Huffman decoding too, GPU
            only; a smaller value saves CPU time.
        preallocate_width_hint, preallocate_height_hint: pixels, for which the engine's memory is
            allocated beforehand, GPU only; None: the 99th percentile of the images.
        device_memory_padding: bytes on the GPU that each thread's decoder starts with, GPU only; an
            image that needs more waits for more to be allocated.
        cpus: on which CPUs its threads run, and so on which NUMA node its memory is: a list such
            as 0-15,32-47, or "gpu": those nearest to the GPU where the batches arrive. None: all
            that this process may use.
        read_threads: threads that read images out of shards and mostly wait; files of one image are
            read by DALI itself.
    """

    device: str = option("auto", check_choice, ("auto", "gpu", "cpu"))
    num_threads: int | None = option(None, check_int, 1, MAX_COUNT)
    prefetch_queue_depth: int | None = option(None, check_int, 1, MAX_COUNT)
    hw_decoder_load: float = option(0.65, check_number, 0, 1)
    exact: bool = False
    decode: str = option("auto", check_choice, DECODE)
    # DALI's own default is off; on, chroma is upsampled as on a CPU (docs/pixels.md)
    jpeg_fancy_upsampling: bool = True
    hybrid_huffman_threshold: int = option(1_000_000, check_int, 0, 2**31 - 1)
    preallocate_width_hint: int | None = option(None, check_int, 1, 2**16)
    preallocate_height_hint: int | None = option(None, check_int, 1, 2**16)
    device_memory_padding: int = option(16 * 2**20, check_int, 0, 2**40)
    resize: str = option("dali", check_choice, RESIZE)
    cpus: str | None = option(None, _check_cpus)
    read_threads: int = option(8, check_int, 1, MAX_COUNT)

    def on_cores(self, cores: int | None = None) -> Self:
        # a list of CPUs also says how many threads are worth starting
        listed = parse_cpus(self.cpus) if self.cpus not in (None, "gpu") else frozenset()
        return LoaderConfig.on_cores(self, cores or len(listed) or None)

    def on_device(self, device: torch.device) -> Self:
        if self.device != "auto":
            return self
        return replace(self, device="gpu" if device.type == "cuda" else "cpu")

    @property
    def engine_load(self) -> float:
        """The share of the images that goes to the hardware JPEG engine, about."""
        return 0.0 if self.exact else self.hw_decoder_load

    @property
    def queue_depth(self) -> int:
        """Batches in flight."""
        return self.prefetch_queue_depth or (4 if self.decodes_on == "gpu" else 2)

    @property
    def needs_gpu(self) -> bool:
        return self.device == "gpu"

    @property
    def decodes_on(self) -> str:
        return (
            self.device if self.device != "auto" else "gpu" if torch.cuda.is_available() else "cpu"
        )

    @property
    def fancy_upsampling(self) -> bool:
        """As libjpeg does it, which the CPU always does."""
        return self.jpeg_fancy_upsampling or self.decodes_on == "cpu"

    @property
    def graph_finishes(self) -> bool:
        """Whether images leave DALI's graph finished, and not as decoded regions."""
        return self.resize == "dali" or self.decodes_on == "gpu"

    @property
    def concurrency(self) -> Concurrency:
        # where PyTorch finishes the images, `Finisher` holds one batch more in work
        return Concurrency(
            self.num_threads or 1, 1, self.queue_depth + (1 if self.graph_finishes else 2)
        )


@dataclass(kw_only=True, slots=True)
class DaliConfig(DaliOptions):
    """NVIDIA DALI. Options keep DALI's names.

    Attributes:
        hw_decoder_load: share of the images that the hardware JPEG engine decodes at most, GPU
            only: the largest of those that are coded in one of the ways that its decoders have
            (docs/gpu-path.md). An image's decoder depends on the image alone. None: so many that
            the engine and the CUDA decoder should be ready at the same time, which depends on
            `num_threads`; state both where the last bits of pixels must not depend on the host.
        engine_decoders: how many decoders use the engine at the same time, GPU only. Each keeps one
            more thread busy, and starts `num_threads` that mostly sleep. None: two if `num_threads`
            is 8 or more, else one.
        cpu_share: share of the images that the CPU decodes beside the GPU, GPU only; for hosts with
            idle cores.
        resize: CPU only. "torch" resizes, crops, flips, augments and normalizes with PyTorch's
            functions for uint8, in `num_threads` threads; "dali" does that in DALI's graph, as on a
            GPU, and is slower (docs/pixels.md).
    """

    name = "dali"
    backend = "dali_pipes.backends.dali.backend:DaliBackend"
    extra = cuda_extra()

    hw_decoder_load: float | None = option(None, check_number, 0, 1)  # type: ignore[assignment]
    engine_decoders: int | None = option(None, check_int, 1, 8)
    cpu_share: float = option(0.0, check_number, 0, 1)
    resize: str = option("torch", check_choice, RESIZE)

    @property
    def engine_load(self) -> float:
        """As of `DaliOptions`; where it is left open, what that comes to, about."""
        usual = USUAL_LOAD if self.hw_decoder_load is None else self.hw_decoder_load
        return 0.0 if self.exact else usual

    @property
    def usual_engine_decoders(self) -> int:
        """`engine_decoders`, or else the usual number for these threads."""
        return self.engine_decoders or (2 if (self.num_threads or 1) >= 8 else 1)
