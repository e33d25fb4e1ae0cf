"""What needs a GPU, on made-up ones; a real one is asked in tests/gpu."""

import sys
from types import SimpleNamespace

import numpy as np
import pynvml
import pytest
import torch
from nvidia import nvimgcodec

import dali_pipes as dp
from dali_pipes.backends.dali.decoding import choose
from dali_pipes.system.nvml import FIGURES, WITH_UTILITY, NoGpu, driver
from dali_pipes.tools.doctor import decode, images, machine, software
from dali_pipes.tools.doctor.images import difference, judge, make_jpeg
from dali_pipes.tools.doctor.report import Finding


def raises(code):
    def fail(*_):
        raise pynvml.NVMLError(code)

    return fail


@pytest.fixture
def made_up_machine(monkeypatch):
    """One GPU that works, with a driver for CUDA 12.8."""

    def set_up(cuda=12080, gpus=1, usable=True, torch_cuda="12.8", adds=True):
        monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(pynvml, "nvmlDeviceGetCount", lambda: gpus)
        monkeypatch.setattr(pynvml, "nvmlSystemGetCudaDriverVersion_v2", lambda: cuda)
        monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "570.86")
        monkeypatch.setattr(torch.version, "cuda", torch_cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        properties = SimpleNamespace(
            name="NVIDIA H200", total_memory=140 * 2**30, major=9, minor=0, uuid="1-2"
        )
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
        monkeypatch.setattr(machine, "adds", lambda: adds)

    set_up()
    return set_up


def test_a_gpu_that_works(made_up_machine):
    message = "NVIDIA H200 (140 GiB, compute capability 9.0); driver 570.86 for CUDA 12.8"
    assert machine.driver_and_gpus() == Finding("ok", message)
    made_up_machine(gpus=2)
    assert machine.driver_and_gpus().found.count("H200") == 2
    made_up_machine(cuda=12020)
    assert machine.driver_and_gpus().status == "ok"  # an older driver of the same major will do


@pytest.mark.parametrize(
    ("trouble", "found", "remedy"),
    [
        (
            {"cuda": 11040},
            "driver 570.86 for CUDA 11.4 is too old: PyTorch is built for CUDA 12.8",
            "update the driver",
        ),
        (
            {"torch_cuda": "13.0"},
            "is too old: PyTorch is built for CUDA 13.0",
            "install the builds for CUDA 12",
        ),
        ({"torch_cuda": None}, "no GPU for this build of PyTorch", "install a build with CUDA"),
        ({"gpus": 0, "usable": False}, "no GPU: NVML: the driver knows no GPU", "--gpus all"),
        ({"usable": False}, "CUDA_VISIBLE_DEVICES is ''", "nvidia-smi -L"),
        ({"adds": False}, "computes wrongly", "nvidia-smi -q"),
    ],
)
def test_a_gpu_that_cannot_be_used(made_up_machine, monkeypatch, trouble, found, remedy):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    made_up_machine(**trouble)
    finding = machine.driver_and_gpus()
    assert finding.status == "failed" and found in finding.found
    assert remedy in finding.remedy and finding.remedy.endswith("CPU loaders work: loader=dali_cpu")


def test_a_container_without_the_capability_utility(made_up_machine, monkeypatch):
    """PyTorch works there, and DALI's decoder does not: NVML belongs to that capability."""
    made_up_machine()
    monkeypatch.setattr(pynvml, "nvmlInit", raises(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    finding = machine.driver_and_gpus()
    assert finding.status == "failed" and finding.found.startswith(
        "PyTorch sees a GPU, and NVML cannot be asked"
    )
    assert WITH_UTILITY in finding.remedy and finding.remedy.endswith(
        "CPU loaders work: loader=dali_cpu"
    )


def test_no_driver(monkeypatch):
    monkeypatch.setattr(pynvml, "nvmlInit", raises(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    with pytest.raises(NoGpu):
        driver()
    finding = machine.driver_and_gpus()
    assert (
        finding.status == "failed"
        and finding.found == "no GPU: NVML: NVML Shared Library Not Found"
    )


class MadeUpGpu:
    """NVML's figures; the counter of the JPEG engines is what `busy` says."""

    missing = None
    busy = 0.0

    def __init__(self, uuid):
        assert uuid == "GPU-1-2"

    def sample(self):
        return dict.fromkeys(FIGURES, 0.5) | {"nvjpg_utilization": type(self).busy}


@pytest.fixture
def nvml(made_up_machine, monkeypatch):
    monkeypatch.setattr(decode, "Gpu", MadeUpGpu)
    monkeypatch.setattr(MadeUpGpu, "missing", {})
    return lambda name, value: monkeypatch.setattr(MadeUpGpu, name, value)


@pytest.fixture
def engines(nvml, monkeypatch):
    """Decoding that keeps the JPEG engines so busy, with and without fancy upsampling."""
    monkeypatch.delenv("NVIDIA_DRIVER_CAPABILITIES", raising=False)
    monkeypatch.setattr(decode, "SECONDS", 0.15)
    asked = []

    def set_up(with_fancy, without=0.0):
        def pipeline(encoded, batch_size, device_id, **tuned):
            asked.append(tuned)
            busy = with_fancy if tuned["jpeg_fancy_upsampling"] else without
            return SimpleNamespace(run=lambda: nvml("busy", busy))

        monkeypatch.setattr(decode, "_pipeline", pipeline)
        return asked

    return set_up


def test_engines_are_proved_by_their_counter(engines):
    asked = engines(0.8)
    assert decode.jpeg_engines() == Finding(
        "ok", "used up to 80% while DALI decoded baseline JPEGs"
    )
    assert asked == [{"hw_decoder_load": 1.0, "jpeg_fancy_upsampling": True}]


@pytest.mark.slow
def test_engines_that_need_an_option(engines):
    engines(0.0, 0.6)
    finding = decode.jpeg_engines()
    assert finding.status == "warning" and "only without jpeg_fancy_upsampling" in finding.found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("capabilities", "remedy"),
    [
        (
            "compute,utility",
            (
                "NVIDIA_DRIVER_CAPABILITIES is 'compute,utility'; start the container with "
                "compute,utility,video"
            ),
        ),
        (
            None,
            (
                "this GPU has none, or a container was started without "
                "NVIDIA_DRIVER_CAPABILITIES=compute,utility,video"
            ),
        ),
        ("all", "this GPU has none."),
        ("compute,video", "this GPU has none."),
    ],
)
def test_engines_that_do_not_move_are_not_there_whatever_the_gpu_s_name(
    engines, monkeypatch, capabilities, remedy
):
    engines(0.0)
    if capabilities:
        monkeypatch.setenv("NVIDIA_DRIVER_CAPABILITIES", capabilities)
    finding = decode.jpeg_engines()
    assert finding.status == "warning" and "their counter stayed at 0%" in finding.found
    assert finding.remedy.startswith(remedy) and "loader.hw_decoder_load=0" in finding.remedy


def test_engines_whose_counter_cannot_be_read_are_unknown(engines, nvml):
    engines(0.8)
    nvml("busy", None)
    nvml("missing", {"nvjpg_utilization": "NVML: Not Supported"})
    finding = decode.jpeg_engines()
    assert (
        finding.status == "warning"
        and finding.found == "unknown: their use cannot be read (NVML: Not Supported)"
    )


def test_engines_that_somebody_else_uses_are_unknown(engines, nvml):
    engines(0.8)
    nvml("busy", 0.4)
    assert decode.jpeg_engines().found == "unknown: another process keeps them 40% busy"


def test_dali_on_the_cpu_has_pillow_s_pixels():
    finding = decode.dali_on_cpu()
    assert (
        finding.status == "ok"
        and "CPU pipeline ran; mean |difference| from Pillow's pixels 0.00 of 255" in finding.found
    )


def test_a_decoder_with_wrong_pixels_fails(monkeypatch):
    encoded, expected = make_jpeg()
    monkeypatch.setattr(decode, "make_jpeg", lambda: (encoded, expected[..., ::-1]))
    finding = decode.dali_on_cpu()
    assert finding.status == "failed" and "images would be wrong" in finding.remedy


def test_pixels_are_compared():
    _, expected = make_jpeg()
    assert difference(expected, expected) == 0 and difference(255 - expected, expected) > 20
    assert difference(expected[1:], expected) == float("inf")
    assert [judge("x", mean).status for mean in (0.9, 1.8, 16, float("inf"))] == [
        "ok",
        "warning",
        "failed",
        "failed",
    ]
    assert (
        difference(expected[..., ::-1], expected)
        > 2 * images.FAR
        < difference(np.roll(expected, 1, 0), expected)
    )
    assert make_jpeg()[0] == make_jpeg()[0]


def test_the_graph_of_the_engines(monkeypatch):
    """Constructed, which needs no GPU: a mixed decoder that is asked to give all to the engines."""
    monkeypatch.setattr(decode.Pipeline, "build", decode.Pipeline._build_graph)
    pipeline = decode._pipeline(
        make_jpeg()[0], decode.BATCH, 0, hw_decoder_load=1.0, jpeg_fancy_upsampling=False
    )
    decoder = next(
        operator
        for operator in pipeline._ops
        if getattr(operator._op, "schema_name", "") == "decoders__Image"
    )
    assert decoder._op.device == "mixed" and pipeline.max_batch_size == decode.BATCH
    assert "hw_decoder_load: 1.0" in str(decoder.spec) and "jpeg_fancy_upsampling: False" in str(
        decoder.spec
    )


@pytest.fixture
def codec(made_up_machine, monkeypatch):
    def set_up(image):
        monkeypatch.setattr(
            nvimgcodec, "Decoder", lambda options: SimpleNamespace(decode=lambda stream: image)
        )

    return set_up


def test_nvimagecodec(codec, made_up_machine):
    _, expected = make_jpeg()
    codec(SimpleNamespace(cpu=lambda: expected))
    found = software.nvimagecodec().found
    assert software.nvimagecodec().status == "ok" and "decoded a JPEG on the GPU" in found
    message = str(choose(dp.DaliConfig(), on_gpu=True))
    assert (
        found.startswith(f"nvImageCodec {nvimgcodec.__version__} ")
        and f"decode=auto takes {message}" in found
    )
    codec(None)
    assert (
        software.nvimagecodec().status == "failed"
        and "cannot decode a JPEG" in software.nvimagecodec().found
    )
    made_up_machine(usable=False)
    assert "reads headers; it decodes on a GPU only" in software.nvimagecodec().found


def test_cupy_compiles_without_a_gpu(made_up_machine):
    made_up_machine(usable=False)
    finding = software.cupy_kernel()
    assert finding.status == "ok" and "bytes of PTX; there is no GPU to run it on" in finding.found


def test_cupy_that_cannot_compile_raises(monkeypatch):
    monkeypatch.setattr(software, "KERNEL", "this is no kernel")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Exception, match="NVRTC_ERROR_COMPILATION"):
        software.cupy_kernel()


@pytest.mark.parametrize(("value", "status"), [(1, "ok"), (0, "failed")])
def test_a_kernel_on_the_gpu_has_to_give_the_right_values(
    made_up_machine, monkeypatch, value, status
):
    def raw_kernel(source, name):
        assert name in source

        def launch(grid, block, arguments):
            arguments[0][:] = value

        return launch

    nvrtc = SimpleNamespace(nvrtc=SimpleNamespace(getVersion=lambda: (12, 8)))
    fake = SimpleNamespace(
        cuda=nvrtc, __version__="14", zeros=np.zeros, float32=np.float32, RawKernel=raw_kernel
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    assert software.cupy_kernel().status == status
