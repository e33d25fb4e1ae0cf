"""The options of the reference loaders."""

from dataclasses import dataclass

from dali_pipes.backends.config import MAX_COUNT, Concurrency, LoaderConfig
from dali_pipes.backends.dali.config import DECODE, DaliConfig
from dali_pipes.errors import check_choice, check_min, option


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


@dataclass(kw_only=True, slots=True)
class CachedConfig(LoaderConfig):
    """The same few batches again and again, made once by DALI: what any loader could gain at most
    on real images.

    Attributes:
        batches: how many are kept, on the device.
    """

    batches: int = option(4, check_min, 1, MAX_COUNT)


@dataclass(kw_only=True, slots=True)
class SyntheticConfig(LoaderConfig):
    """Constant images that lie on the device already, with the plan's ids and labels: the ceiling
    no loader can exceed.
    """


@dataclass(kw_only=True, slots=True)
class DataLoaderConfig(LoaderConfig):
    """A PyTorch DataLoader of your own, outside the plan: for comparisons.

    Attributes:
        function: module:function, which takes no arguments and returns it; also a module in the
            working directory.
        num_workers: those it has.
    """

    function: str = ""
    num_workers: int = option(0, check_min, 0, MAX_COUNT)

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency(max(1, self.num_workers), max(1, self.num_workers), 2 * self.num_workers)
