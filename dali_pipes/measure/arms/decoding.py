"""The options of decoding alone; decoding_backend.py does it."""

from dataclasses import dataclass

from dali_pipes.backends.dali.config import DaliOptions
from dali_pipes.checks import check_choice
from dali_pipes.options import option
from dali_pipes.system.cuda import cuda_extra


@dataclass(kw_only=True, slots=True)
class DecodingConfig(DaliOptions):
    """Decoding alone, on the CPU, with DALI; the images are dropped: what a CPU loader of the same
    images costs at least.

    Attributes:
        device: "cpu", whose work it measures.
        decode: "region" decodes the planned regions, "whole" the whole images, of which the regions
            are copied.
        resize: "torch", to which DALI hands the regions; here nobody resizes them.
    """

    name = "decoding"
    backend = "dali_pipes.measure.arms.decoding_backend:DecodingBackend"
    extra = cuda_extra()

    device: str = option("cpu", check_choice, ("cpu",))
    decode: str = option("region", check_choice, ("region", "whole"))
    resize: str = option("torch", check_choice, ("torch",))
