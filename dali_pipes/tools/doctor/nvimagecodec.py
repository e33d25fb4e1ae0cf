"""nvImageCodec, tested on a JPEG. Runs in a child process, since a broken library may crash."""

import numpy as np
import torch
from nvidia import nvimgcodec

from dali_pipes.backends.config import DaliConfig
from dali_pipes.backends.dali.decoding import choose
from dali_pipes.plan.transforms import TrainTransform
from dali_pipes.tools.doctor.finding import Finding, failed, ok
from dali_pipes.tools.doctor.images import difference, judge, make_jpeg
from dali_pipes.tools.doctor.software import SETUP


def nvimagecodec() -> Finding:
    """A header read; with a GPU, an image decoded. Reports the version, and the choice of decode=auto with it."""
    encoded, expected = make_jpeg()
    version = f"nvImageCodec {nvimgcodec.__version__}"
    stream = nvimgcodec.CodeStream(encoded)
    if (stream.height, stream.width) != expected.shape[:2]:
        return failed(f"{version} reads {stream.height} × {stream.width} from the header of a JPEG of {expected.shape[:2]}", SETUP)
    if not torch.cuda.is_available():
        return ok(f"{version} reads headers; it decodes on a GPU only; {_auto()}")
    image = nvimgcodec.Decoder(options=":fancy_upsampling=1").decode(stream)
    if image is None:
        return failed(f"{version} cannot decode a JPEG", SETUP)
    return judge(f"{version} decoded a JPEG on the GPU; {_auto()}", difference(np.asarray(image.cpu()), expected))


def _auto() -> str:
    """The choice of loader.decode=auto on a GPU."""
    return f"decode=auto takes {choose(DaliConfig(), TrainTransform(), on_gpu=True)}"
