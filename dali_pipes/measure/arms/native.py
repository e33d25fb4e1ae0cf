"""The options of DALI without the plan; native_loader.py loads with them."""

from dataclasses import dataclass

from dali_pipes.backends.dali.config import DaliOptions
from dali_pipes.checks import check_choice
from dali_pipes.options import option
from dali_pipes.system.cuda import cuda_extra


@dataclass(kw_only=True, slots=True)
class DaliNativeConfig(DaliOptions):
    """DALI's own readers.file and image_random_crop, outside the plan: for benchmarks, not for
    training.

    By default with what NVIDIA's own benchmarks take (internal_tools/hw_decoder_bench.py of DALI):
    no fancy upsampling, and regions where they work. With `jpeg_fancy_upsampling` images are
    decoded as by DaliConfig, and the difference is what the plan costs.

    Attributes:
        resize: "dali", since its graph makes the images.
    """

    name = "dali_native"
    backend = "dali_pipes.measure.arms.native_loader:NativeLoader"
    extra = cuda_extra()

    jpeg_fancy_upsampling: bool = False
    resize: str = option("dali", check_choice, ("dali",))
