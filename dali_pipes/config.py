"""Every option of images, transforms and loaders, with its default and its check."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dali_pipes.augment.augmenter import Augmenter
from dali_pipes.errors import ConfigError
from dali_pipes.geometry import Geometry, padded_crop, random_resized_crop, resize_center_crop
from dali_pipes.philox import Draws

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def one_of(option: str, value: object, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{option} is {value!r}; choose one of {', '.join(choices)}")


def at_least(option: str, value: float | None, least: float) -> None:
    if value is not None and value < least:
        raise ConfigError(f"{option} is {value}; it must be at least {least}")


def within(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{option} is {value}; it must lie between {low} and {high}")


def _ordered_pair(option: str, pair: Sequence[float]) -> None:
    if len(pair) != 2 or not 0 < pair[0] <= pair[1]:
        raise ConfigError(f"{option} is {list(pair)}; it takes two positive numbers, the smaller first")


def _epochs_and_sizes(given: object) -> dict[int, int]:
    """JSON has strings only as keys."""
    pairs = [(str(epoch), size) for epoch, size in given.items()] if isinstance(given, Mapping) else []
    if not pairs or not all(epoch.isdecimal() and isinstance(size, int) and size > 0 for epoch, size in pairs):
        raise ConfigError(
            f"transform.sizes is {given}; it takes epochs from 0 and sizes in pixels from 1, such as {{0: 128, 10: 192}}"
        )
    return {int(epoch): size for epoch, size in pairs}


def _tuple(values: Sequence[float]) -> Any:
    """YAML has lists only."""
    return tuple(values)


@dataclass(kw_only=True, slots=True)
class Transform(ABC):
    """What the pixels look like when they arrive; the base of all transforms.

    Attributes:
        size: height and width of the images, in pixels.
        mean, std: per channel, of values in [0, 1]; not applied to uint8.
        dtype: "fp32", "fp16", or "uint8" (0 … 255, not normalized).
        memory_format: PyTorch's "contiguous" or "channels_last"; the shape is (N, 3, size, size) in both.
        exif: "ignore" takes the pixels as stored, as torchvision's ImageFolder does; "apply" turns them upright.
    """

    size: int = 224
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    dtype: str = "fp32"
    memory_format: str = "contiguous"
    exif: str = "ignore"

    def __post_init__(self) -> None:
        at_least("transform.size", self.size, 1)
        one_of("transform.dtype", self.dtype, ("fp32", "fp16", "uint8"))
        one_of("transform.memory_format", self.memory_format, ("contiguous", "channels_last"))
        one_of("transform.exif", self.exif, ("ignore", "apply"))
        for option, value in (("mean", self.mean), ("std", self.std)):
            if len(value) != 3:
                raise ConfigError(f"transform.{option} is {list(value)}; it takes three numbers, for red, green and blue")
        if min(self.std) <= 0:
            raise ConfigError(f"transform.std is {list(self.std)}; it must be positive")
        self.mean, self.std = _tuple(self.mean), _tuple(self.std)

    @property
    @abstractmethod
    def training(self) -> bool:
        """Training shuffles and drops the last partial batch by default; evaluation does neither."""

    @property
    @abstractmethod
    def crops(self) -> bool:
        """Whether the output is cut out of the resized image."""

    @property
    def augmenter(self) -> Augmenter:
        """What else is done to the pixels."""
        return Augmenter([])

    def size_at(self, epoch: int) -> int:
        """The size of one epoch's images, in pixels."""
        return self.size

    def at(self, epoch: int) -> Self:
        """The transform of one epoch."""
        size = self.size_at(epoch)
        return self if size == self.size else replace(self, size=size)

    @property
    def every_size(self) -> set[int]:
        """The sizes of all epochs, in pixels."""
        return {self.size}

    @abstractmethod
    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        """The geometry of images whose stored heights and widths are `source`, of shape (N, 2)."""


@dataclass(kw_only=True, slots=True)
class RandomTransform(Transform):
    """A random crop, a random flip, then the policies of `augment`; the base of the training transforms.

    Attributes:
        flip: the probability of a left-right flip.
        augment: policies in the order in which they are carried out, such as "TrivialAugmentWide" or {"name": "RandomErasing",
            "p": 0.25}; dali_pipes/augment/policies.py has them all.
        sizes: progressive resizing: from epoch to the size from then on, such as {0: 128, 10: 192}; before the first epoch named it
            is `size`.
    """

    flip: float = 0.5
    augment: list[Any] = field(default_factory=list)
    sizes: Any = None  # None or dict[int, int], which OmegaConf cannot take from the command line

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        within("transform.flip", self.flip, 0, 1)
        self.augment = Augmenter(self.augment).policies
        if self.sizes is not None:
            self.sizes = _epochs_and_sizes(self.sizes)

    @property
    def training(self) -> bool:
        return True

    @property
    def augmenter(self) -> Augmenter:
        return Augmenter(self.augment)

    def size_at(self, epoch: int) -> int:
        return max(((since, size) for since, size in self._sizes().items() if since <= epoch), default=(0, self.size))[1]

    @property
    def every_size(self) -> set[int]:
        return {self.size_at(epoch) for epoch in (0, *self._sizes())}

    def _sizes(self) -> dict[int, int]:
        return self.sizes or {}


@dataclass(kw_only=True, slots=True)
class TrainTransform(RandomTransform):
    """A random resized crop and a random flip, distributed as torchvision's RandomResizedCrop and RandomHorizontalFlip.

    Attributes:
        scale: smallest and largest share of the image's area.
        ratio: smallest and largest width / height of the crop.
    """

    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        RandomTransform.__post_init__(self)
        _ordered_pair("transform.scale", self.scale)
        _ordered_pair("transform.ratio", self.ratio)
        self.scale, self.ratio = _tuple(self.scale), _tuple(self.ratio)

    @property
    def crops(self) -> bool:
        return False

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        return random_resized_crop(source, self.size, self.scale, self.ratio, self.flip, draws)


@dataclass(kw_only=True, slots=True)
class PaddedCropTransform(RandomTransform):
    """torchvision's RandomCrop(size, padding) and RandomHorizontalFlip, for small images.

    Images of another size are first resized to `size` × `size`.

    Attributes:
        padding: black pixels added on each side, out of which the crop is cut.
    """

    size: int = 32
    padding: int = 4

    def __post_init__(self) -> None:
        RandomTransform.__post_init__(self)
        at_least("transform.padding", self.padding, 0)

    @property
    def crops(self) -> bool:
        return True

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        return padded_crop(source, self.size, self.padding, self.flip, draws)


@dataclass(kw_only=True, slots=True)
class EvalTransform(Transform):
    """The shorter side resized, then a central crop: torchvision's Resize(resize) and CenterCrop(size).

    Attributes:
        resize: length of the shorter side before the crop, in pixels.
    """

    resize: int = 256

    def __post_init__(self) -> None:
        Transform.__post_init__(self)
        if self.resize < self.size:
            raise ConfigError(f"transform.resize is {self.resize}, less than transform.size {self.size}; nothing could be cropped")

    @property
    def training(self) -> bool:
        return False

    @property
    def crops(self) -> bool:
        return True

    def geometry(self, source: NDArray[np.int64], draws: Draws) -> Geometry:
        return resize_center_crop(source, self.resize, self.size)


@dataclass(kw_only=True, slots=True)
class DaliConfig:
    """NVIDIA DALI. Options keep DALI's names.

    Attributes:
        device: "gpu" decodes with nvJPEG and transforms on the GPU, "cpu" does all on the CPU, "auto" takes a GPU if there is one.
        num_threads: CPU threads; None: all that this process may use.
        prefetch_queue_depth: batches in flight.
        hw_decoder_load: share of a batch that goes to the hardware JPEG engine, GPU only; tune it together with num_threads.
        decode: "region" decodes the planned window only, "whole" decodes the image and cuts the window out.
        jpeg_fancy_upsampling: chroma upsampling as libjpeg does it, GPU only (the CPU always does); without it pixels differ.
        read_threads: threads that read images out of shards, all but idle; DALI itself reads files of one image.
    """

    device: str = "auto"
    num_threads: int | None = None
    prefetch_queue_depth: int = 2
    hw_decoder_load: float = 0.65
    decode: str = "region"
    jpeg_fancy_upsampling: bool = True
    read_threads: int = 8

    def __post_init__(self) -> None:
        one_of("loader.device", self.device, ("auto", "gpu", "cpu"))
        one_of("loader.decode", self.decode, ("region", "whole"))
        at_least("loader.num_threads", self.num_threads, 1)
        at_least("loader.prefetch_queue_depth", self.prefetch_queue_depth, 1)
        at_least("loader.read_threads", self.read_threads, 1)
        within("loader.hw_decoder_load", self.hw_decoder_load, 0, 1)


@dataclass(kw_only=True, slots=True)
class DaliNativeConfig(DaliConfig):
    """DALI's own readers.file and image_random_crop, outside the plan: a yardstick for what planning costs, not for training."""


@dataclass(kw_only=True, slots=True)
class TorchConfig:
    """PyTorch's DataLoader on the CPU. Options keep PyTorch's names.

    Attributes:
        decoder: "pil" (Pillow) or "torchvision" (its libjpeg binding; Pillow for what is not JPEG).
        num_workers: worker processes; None: as many as the cores that this process may use; 0: decode in this process.
        pin_memory: copy batches to page-locked memory, if they go on to a GPU.
        prefetch_factor: batches in flight per worker.
        persistent_workers: keep the workers when an epoch is abandoned.
        multiprocessing_context: "fork", "spawn" or "forkserver"; None: Python's default.
        normalize_on: "worker" normalizes in the worker processes; "device" sends uint8 and normalizes where the batch arrives;
            "auto" is "device" if that is a GPU.
    """

    decoder: str = "pil"
    num_workers: int | None = None
    pin_memory: bool = True
    prefetch_factor: int = 2
    persistent_workers: bool = True
    multiprocessing_context: str | None = None
    normalize_on: str = "auto"

    def __post_init__(self) -> None:
        one_of("loader.decoder", self.decoder, ("pil", "torchvision"))
        one_of("loader.normalize_on", self.normalize_on, ("auto", "worker", "device"))
        if self.multiprocessing_context is not None:
            one_of("loader.multiprocessing_context", self.multiprocessing_context, ("fork", "spawn", "forkserver"))
        at_least("loader.num_workers", self.num_workers, 0)
        at_least("loader.prefetch_factor", self.prefetch_factor, 1)


@dataclass(kw_only=True, slots=True)
class SyntheticConfig:
    """Constant images that lie on the device already, with the plan's ids and labels: the ceiling no loader can exceed."""


@dataclass(kw_only=True, slots=True)
class CachedConfig:
    """The same few batches again and again, made once by DALI: what any loader could gain at most on real images.

    Attributes:
        batches: how many are kept, on the device.
    """

    batches: int = 4

    def __post_init__(self) -> None:
        at_least("loader.batches", self.batches, 1)


@dataclass(kw_only=True, slots=True)
class TfDataConfig:
    """TensorFlow's tf.data on the CPU. It takes as many threads as it likes (AUTOTUNE), up to `num_threads`.

    Attributes:
        num_threads: threads of its private pool; None: all cores that this process may use.
    """

    num_threads: int | None = None

    def __post_init__(self) -> None:
        at_least("loader.num_threads", self.num_threads, 1)


@dataclass(kw_only=True, slots=True)
class TorchvisionGpuConfig:
    """torchvision on the GPU: decode_jpeg of whole batches with nvJPEG, then crop, resize and flip image by image.

    Attributes:
        num_threads: threads that read files; None: as many as the cores that this process may use.
        prefetch: batches read ahead.
    """

    num_threads: int | None = None
    prefetch: int = 2

    def __post_init__(self) -> None:
        at_least("loader.num_threads", self.num_threads, 1)
        at_least("loader.prefetch", self.prefetch, 1)


LoaderConfig = DaliConfig | DaliNativeConfig | TorchConfig | TfDataConfig | TorchvisionGpuConfig | CachedConfig | SyntheticConfig


def needs_gpu(config: LoaderConfig) -> bool:
    """Whether this loader runs on a GPU only."""
    return isinstance(config, TorchvisionGpuConfig) or getattr(config, "device", "auto") == "gpu"


@dataclass(kw_only=True, slots=True)
class DataConfig:
    """Where the images are.

    Attributes:
        root: folder that holds train/ and val/.
        train, val: a folder with a subfolder for each class, a folder or URL of shards, a CSV or Parquet table of path and label,
            or a saved manifest; None: the folder of that name in `root`.
        label_separator: splits the labels of a table into several classes each, as ";" does in "cat;dog"; None: one name each.
        cache_dir: where scans are remembered; None: nowhere.
        demo: `root` is the demo set, and it is made if it is not there.
    """

    root: str | None = None
    train: str | None = None
    val: str | None = None
    label_separator: str | None = None
    cache_dir: str | None = None
    demo: bool = False

    def source(self, split: str) -> str:
        """What names the images of "train" or "val"."""
        source = self.train if split == "train" else self.val
        if source is None and self.root is None:
            raise ConfigError(f"no images given; set data.{split}=DIR, a folder with a subfolder of images for each class")
        return source or f"{self.root}/{split}"
