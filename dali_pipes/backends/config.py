"""Every option of every loader, with its default and its check.

Each backend has one class here, which also says what follows from its options: whether they need a
GPU, how many batches are made at once, and which values `dali-pipes tune` tries. `on_cores` and
`on_device` fill in what is left to the machine.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import torch

from dali_pipes.errors import (
    ConfigError,
    Options,
    check_choice,
    check_min,
    check_options,
    check_range,
    option,
)
from dali_pipes.system.cpus import available_cpus, parse_cpus

DECODE = ("auto", "region", "whole", "probe", "force_region")
_MOST = 2**12  # threads, processes, and batches ahead


def _check_cpus(option: str, value: str | None) -> None:
    try:
        parse_cpus("0" if value in (None, "gpu") else str(value))
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}; or gpu") from None


class PixelBound(NamedTuple):
    """The largest accepted |difference| between the pixels of two loaders, in steps of 1/255.

    Its mean, and its 99th percentile.
    """

    mean: float
    p99: float


# Between nvJPEG and libjpeg. nvJPEG's CUDA decoder makes images darker by 0.47 on average, as if it
# did not round; its JPEG engine rounds. A mean of 0.52 and a p99 of 2 were measured
# (docs/pixels.md).
NVJPEG = PixelBound(0.75, 2.0)

# Between plain and fancy chroma upsampling, with what resizing adds; docs/pixels.md has the
# measurements.
PLAIN_UPSAMPLING = PixelBound(1.5, 12.0)


class Concurrency(NamedTuple):
    """How many batches are made at the same time, and how far ahead."""

    makers: int = 1  # processes or threads; the training process itself counts as 1
    burst: int = 1  # batches that come at once
    ahead: int = 0  # batches that are made ahead


@dataclass(kw_only=True, slots=True)
class LoaderConfig(Options):
    """The options of one backend; the base of all of them."""

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def needs_gpu(self) -> bool:
        """Whether this loader runs on a GPU only."""
        return False

    @property
    def decodes_on(self) -> str:
        """Where images are decoded here: "cpu" or "gpu"."""
        return "cpu"

    @property
    def fancy_upsampling(self) -> bool:
        """Whether chroma is upsampled as libjpeg does it by default."""
        return True

    @property
    def cores_option(self) -> str | None:
        """The option that says how many cores are used."""
        return next((name for name in ("num_workers", "num_threads") if hasattr(self, name)), None)

    def on_cores(self, cores: int | None = None) -> Self:
        """The same options with the number of cores set, if it is None.

        By default these are all cores that this process may use.
        """
        name = self.cores_option
        return (
            replace(self, **{name: cores or available_cpus()})
            if name and getattr(self, name) is None
            else self
        )

    def on_device(self, device: torch.device) -> Self:
        """The same options with each "auto" decided for batches that arrive on this device."""
        return self

    @property
    def concurrency(self) -> Concurrency:
        """How batches are made; the number of cores must be set."""
        return Concurrency(getattr(self, self.cores_option or "", None) or 1)

    def search_space(self, cores: int) -> dict[str, list[Any]]:
        """The options that change the speed, each with the values that are worth trying on this
        number of cores.

        They leave the pixels as they are, except those that choose between a GPU's decoders, whose
        pixels differ by less than `NVJPEG`.
        """
        return {}


@dataclass(kw_only=True, slots=True)
class DaliConfig(LoaderConfig):
    """NVIDIA DALI. Options keep DALI's names.

    Attributes:
        device: "gpu" decodes with nvJPEG and transforms on the GPU, "cpu" does all on the CPU,
            "auto" takes a GPU if there is one.
        num_threads: CPU threads; None: all that this process may use.
        prefetch_queue_depth: batches in flight.
        hw_decoder_load: share of a batch that goes to the hardware JPEG engine, GPU only; tune it
            together with num_threads. Gray images never go there.
        exact: does not use the GPU's hardware JPEG engine (hw_decoder_load=0), whose pixels differ
            slightly from those of nvJPEG's CUDA decoder. Then an image has the same pixels bit for
            bit on any number of GPUs, and after a resume.
        decode: "region" decodes only the planned window; "whole" decodes the image and cuts the
            window out. "auto" decodes regions, except on a GPU with libraries that are known to
            decode them wrongly or on the CPU (docs/gpu-path.md). "probe" tests regions on this GPU
            first, in a separate process. "force_region" always decodes regions, even with known
            faults, unless `exact` is on and they would break it.
        jpeg_fancy_upsampling: chroma upsampling as libjpeg does it, GPU only (the CPU always does);
            without it pixels differ.
        hybrid_huffman_threshold: pixels from which on the GPU does the Huffman decoding too, GPU
            only; a smaller value saves CPU time.
        preallocate_width_hint, preallocate_height_hint: pixels, for which the engine's memory is
            allocated beforehand, GPU only; None: the 99th percentile of the images.
        device_memory_padding: bytes on the GPU that each thread's decoder starts with, GPU only; an
            image that needs more waits for more to be allocated.
        resize: CPU only. "torch" resizes, crops, flips, augments and normalizes with PyTorch's
            functions for uint8, in `num_threads` threads; "dali" does that in DALI's graph, as on a
            GPU, and is slower (docs/pixels.md).
        cpus: on which CPUs its threads run, and so on which NUMA node its memory lies: a list such
            as 0-15,32-47, or "gpu": those nearest to the GPU where the batches arrive. None: all
            that this process may use.
        read_threads: threads that read images out of shards and mostly wait; files of one image are
            read by DALI itself.
    """

    device: str = option("auto", check_choice, ("auto", "gpu", "cpu"))
    num_threads: int | None = option(None, check_min, 1, _MOST)
    prefetch_queue_depth: int = option(2, check_min, 1, _MOST)
    hw_decoder_load: float = option(0.65, check_range, 0, 1)
    exact: bool = False
    decode: str = option("auto", check_choice, DECODE)
    # DALI's own default is off; on, chroma is upsampled as on a CPU (docs/pixels.md)
    jpeg_fancy_upsampling: bool = True
    hybrid_huffman_threshold: int = option(1_000_000, check_min, 0, 2**31 - 1)
    preallocate_width_hint: int | None = option(None, check_min, 1, 2**16)
    preallocate_height_hint: int | None = option(None, check_min, 1, 2**16)
    device_memory_padding: int = option(16 * 2**20, check_min, 0, 2**40)
    resize: str = option("torch", check_choice, ("torch", "dali"))
    cpus: str | None = option(None, _check_cpus)
    read_threads: int = option(8, check_min, 1, _MOST)

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
        """The share of a batch that goes to the hardware JPEG engine."""
        return 0.0 if self.exact else self.hw_decoder_load

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
        """Whether images leave DALI's graph finished, and not as decoded windows."""
        return self.resize == "dali" or self.decodes_on == "gpu"

    @property
    def concurrency(self) -> Concurrency:
        # where PyTorch finishes the images, `Finisher` holds one batch more in work
        return Concurrency(
            self.num_threads or 1, 1, self.prefetch_queue_depth + (1 if self.graph_finishes else 2)
        )

    def search_space(self, cores: int) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {
            "num_threads": _shares(cores, 1 / 4, 1 / 2, 1, 3 / 2),
            "prefetch_queue_depth": [1, 2, 4],
        }

        if self.decodes_on == "cpu":
            return found
        # with `exact` the engine gets no image, whatever this value is
        if not self.exact:
            found["hw_decoder_load"] = [0.0, 0.15, 0.3, 0.5, 0.65, 0.8, 1.0]
        # ImageNet's images have fewer pixels than the default, so only lower values move their
        # Huffman decoding to the GPU
        return found | {
            "decode": ["auto", "whole"],
            "hybrid_huffman_threshold": [1_000_000, 300_000, 100_000, 1],
        }


@dataclass(kw_only=True, slots=True)
class DaliNativeConfig(DaliConfig):
    """DALI's own readers.file and image_random_crop, outside the plan: for benchmarks, not for
    training.

    By default with what NVIDIA's own benchmarks take (internal_tools/hw_decoder_bench.py of DALI):
    no fancy upsampling, and regions where they work. With `jpeg_fancy_upsampling` images are
    decoded as by DaliConfig, and the difference is what the plan costs.
    """

    decode: str = option("probe", check_choice, DECODE)
    jpeg_fancy_upsampling: bool = False
    resize: str = option("dali", check_choice, ("dali",))

    search_space = LoaderConfig.search_space  # none


@dataclass(kw_only=True, slots=True)
class DecodingConfig(DaliConfig):
    """Decoding alone, on the CPU, with DALI; the images are dropped: what a CPU loader of the same
    images costs at least.

    Attributes:
        decode: "region" decodes the planned windows, "whole" the whole images, of which the windows
            are copied.
    """

    device: str = option("cpu", check_choice, ("cpu",))
    decode: str = option("region", check_choice, ("region", "whole"))
    resize: str = option("torch", check_choice, ("torch",))

    search_space = LoaderConfig.search_space  # none


@dataclass(kw_only=True, slots=True)
class TorchConfig(LoaderConfig):
    """PyTorch's DataLoader on the CPU. Options keep PyTorch's names.

    Attributes:
        decoder: "pil" (Pillow) or "torchvision" (its libjpeg binding; Pillow for what is not JPEG).
        num_workers: worker processes; None: as many as the cores that this process may use; 0:
            decode in this process.
        pin_memory: copy batches to page-locked memory, if they go on to a GPU.
        prefetch_factor: batches in flight per worker.
        persistent_workers: keep the workers when an epoch is abandoned.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None: Python's default.
        normalize_on: "worker" normalizes in the worker processes; "device" sends uint8 and
            normalizes where the batch arrives; "auto" is "device" if that is a GPU.
    """

    decoder: str = option("pil", check_choice, ("pil", "torchvision"))
    num_workers: int | None = option(None, check_min, 0, _MOST)
    pin_memory: bool = True
    prefetch_factor: int = option(2, check_min, 1, _MOST)
    persistent_workers: bool = True
    multiprocessing_context: str | None = option(
        None, check_choice, (None, "fork", "spawn", "forkserver")
    )
    normalize_on: str = option("auto", check_choice, ("auto", "worker", "device"))

    def on_device(self, device: torch.device) -> Self:
        if self.normalize_on != "auto":
            return self
        return replace(self, normalize_on="device" if device.type == "cuda" else "worker")

    @property
    def sends_bytes(self) -> bool:
        """Whether workers send uint8 pixels, which are normalized where the batch arrives.

        With normalize_on=auto they do so if that is a GPU.
        """
        return self.normalize_on != "worker"

    @property
    def concurrency(self) -> Concurrency:
        workers = self.num_workers or 0
        return Concurrency(max(1, workers), max(1, workers), workers * self.prefetch_factor)

    def search_space(self, cores: int) -> dict[str, list[Any]]:
        return {"num_workers": _shares(cores, 1 / 2, 1, 3 / 2, 2), "prefetch_factor": [1, 2, 4]}


@dataclass(kw_only=True, slots=True)
class SyntheticConfig(LoaderConfig):
    """Constant images that lie on the device already, with the plan's ids and labels: the ceiling
    no loader can exceed.
    """


@dataclass(kw_only=True, slots=True)
class CachedConfig(LoaderConfig):
    """The same few batches again and again, made once by DALI: what any loader could gain at most
    on real images.

    Attributes:
        batches: how many are kept, on the device.
    """

    batches: int = option(4, check_min, 1, _MOST)


@dataclass(kw_only=True, slots=True)
class TfDataConfig(LoaderConfig):
    """TensorFlow's tf.data on the CPU. It takes as many threads as it likes (AUTOTUNE), up to
    `num_threads`.

    Attributes:
        num_threads: threads of its private pool; None: all cores that this process may use.
    """

    num_threads: int | None = option(None, check_min, 1, _MOST)

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(self.num_threads or 1, 1, 3)


@dataclass(kw_only=True, slots=True)
class TorchvisionGpuConfig(LoaderConfig):
    """torchvision on the GPU: decode_jpeg of whole batches with nvJPEG, then crop, resize and flip
    image by image.

    It upsamples chroma plainly, other than every loader on the CPU: torchvision creates nvJPEG
    without the flag for fancy upsampling (torchvision 0.25,
    torchvision/csrc/io/image/cuda/decode_jpegs_cuda.cpp), and has no option for it. docs/pixels.md
    has the bound.

    Attributes:
        num_threads: threads that read files; None: as many as the cores that this process may use.
        prefetch: batches read ahead.
    """

    num_threads: int | None = option(None, check_min, 1, _MOST)
    prefetch: int = option(2, check_min, 1, _MOST)

    needs_gpu: ClassVar[bool] = True
    decodes_on: ClassVar[str] = "gpu"
    fancy_upsampling: ClassVar[bool] = False

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(self.num_threads or 1, 1, self.prefetch + 1)


@dataclass(kw_only=True, slots=True)
class DataLoaderConfig(LoaderConfig):
    """A PyTorch DataLoader of your own, outside the plan: for comparisons.

    Attributes:
        function: module:function, which takes no arguments and returns it; also a module in the
            working directory.
        num_workers: those it has.
    """

    function: str = ""
    num_workers: int = option(0, check_min, 0, _MOST)

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(max(1, self.num_workers), max(1, self.num_workers), 2 * self.num_workers)


def _shares(cores: int, *shares: float) -> list[int]:
    return sorted({max(1, int(share * cores)) for share in shares})
