"""The options of torchvision on a GPU."""

from dataclasses import dataclass
from typing import ClassVar

from dali_pipes.backends.config import MAX_COUNT, Concurrency, LoaderConfig
from dali_pipes.checks import check_min
from dali_pipes.options import option


@dataclass(kw_only=True, slots=True)
class TorchvisionGpuConfig(LoaderConfig):
    """torchvision on the GPU: decode_jpeg of whole batches with nvJPEG, then crop, resize and flip
    image by image.

    It upsamples chroma plainly, unlike every loader on the CPU: torchvision creates nvJPEG
    without the flag for fancy upsampling (torchvision 0.25,
    torchvision/csrc/io/image/cuda/decode_jpegs_cuda.cpp), and has no option for it. docs/pixels.md
    has the bound.

    Attributes:
        num_threads: threads that read files; None: as many as the cores that this process may use.
        prefetch: batches read ahead.
    """

    num_threads: int | None = option(None, check_min, 1, MAX_COUNT)
    prefetch: int = option(2, check_min, 1, MAX_COUNT)

    needs_gpu: ClassVar[bool] = True
    decodes_on: ClassVar[str] = "gpu"
    fancy_upsampling: ClassVar[bool] = False

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(self.num_threads or 1, 1, self.prefetch + 1)
