"""The decoding that a loader's options come to: tried for real on the CPU, and judged on figures
that nobody measured.
"""

import io
from pathlib import Path

import pytest
import torch
from PIL import Image, JpegImagePlugin

import dali_pipes as dp
from dali_pipes.backends.dali import decoding
from dali_pipes.measure.arms import DaliNativeConfig
from dali_pipes.system.child import Answer, ChildError
from dali_pipes.tools.doctor import decoding_check, decoding_compare, images
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.doctor.decoding_check import ComparedDecoding
from dali_pipes.tools.doctor.images import KINDS, SIZES, make_images
from dali_pipes.tools.doctor.run import all_checks

CPU = torch.device("cpu")
SIMPLER = "loader.jpeg_fancy_upsampling=false, with other pixels"
FINE = ComparedDecoding(
    images=60,
    mean=0.12,
    far={},
    refused=[],
    accepted=[],
    cpu_ms=0.4,
    cpu_ms_on_cpu=2.0,
    engine_load=0.65,
    nvjpg=0.3,
    sm=0.2,
    digest="ab",
    decodes="DALI on GPU 0 decodes whole images",
    fallbacks={},
)


def with_(**changes):
    return ComparedDecoding(
        **{name: getattr(FINE, name) for name in ComparedDecoding.__slots__} | changes
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make_images(folder)
    return folder


def test_made_images_are_of_every_kind(made, tmp_path):
    subsampling = {"444": 0, "422": 1, "420": 2, "progressive": 2}
    for kind in KINDS:
        files = sorted((made / kind).iterdir())
        assert len(files) == len(SIZES) == 12
        for file in files:
            with Image.open(file) as image:
                assert f"{image.height}x{image.width}" == file.stem and image.mode == (
                    "L" if kind.startswith("gray") else "RGB"
                )
                assert ("progressive" in image.info) == (kind == "progressive")
                if kind.startswith("gray"):
                    assert image.layer[0][1:3] == ((2, 1) if kind == "gray-422" else (1, 1))
                else:
                    assert JpegImagePlugin.get_sampling(image) == subsampling[kind]
    assert any(height * width > dp.DaliConfig().hybrid_huffman_threshold for height, width in SIZES)
    make_images(tmp_path / "again")
    for file in made.rglob("*.jpg"):
        assert (tmp_path / "again" / file.relative_to(made)).read_bytes() == file.read_bytes()


def test_the_truncated_one_has_a_header_and_no_end(made):
    (file,) = (made / "truncated").iterdir()
    image = Image.open(io.BytesIO(file.read_bytes()))
    assert image.size == (500, 375)
    with pytest.raises(OSError, match="truncated"):
        image.load()


@pytest.mark.slow
def test_the_cpu_decodes_made_images_as_the_cpu_does(monkeypatch):
    """The real thing, but for the GPU and the child process: with the loader's own options."""
    monkeypatch.setattr(decoding_compare, "SECONDS", 0.1)
    monkeypatch.setattr(
        decoding_check,
        "in_child",
        lambda function, limit_s, *job: Answer(decoding_compare.compare(*job), ""),
    )
    finding = images.made_images(dp.DaliConfig(device="cpu", decode="whole"), 256, 120, CPU)
    assert finding.status == "ok", finding
    assert "72 images, mean |difference| from the CPU's pixels 0.00 of 255" in finding.found
    assert (
        "whole images, then cropped" in finding.found
        and "CPU-ms an image, a loader on the CPU" in finding.found
    )


def test_what_is_as_on_the_cpu_is_ok_with_its_figures():
    finding = images.judge_decoding(FINE, dp.DaliConfig())
    assert finding.status == "ok"
    assert finding.found == (
        "60 images, mean |difference| from the CPU's pixels 0.12 of 255; 0.40 CPU-ms an "
        "image, a loader on the CPU 2.00; "
        "JPEG engines up to 30%; SM up to 20%; DALI on GPU 0 decodes whole images"
    )
    assert "JPEG engines" not in images.judge_decoding(with_(nvjpg=None), dp.DaliConfig()).found


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (
            {"fallbacks": {"ROI unsupported": 9}},
            "decoded on the CPU, at least 9 × nvImageCodec: ROI unsupported",
        ),
        ({"nvjpg": 0.0, "cpu_ms": 2.1}, "the counter of the JPEG engines stayed at 0%"),
        ({"far": {"a.jpg": 30.0}}, "a.jpg by 30.0 of 255"),
        ({"refused": ["a.jpg"], "accepted": ["b.jpg"]}, "1 images are refused"),
    ],
)
def test_decoding_on_the_cpu_and_wrong_pixels_fail(wrong, found):
    finding = images.judge_decoding(with_(**wrong), dp.DaliConfig())
    assert finding.status == "failed" and found in finding.found and "60 images" in finding.found
    assert "loader=dali_cpu, which needs no GPU" in finding.remedy


def test_a_damaged_image_that_nvjpeg_takes_is_a_warning():
    finding = images.judge_decoding(with_(accepted=["b.jpg"]), dp.DaliConfig())
    assert (
        finding.status == "warning"
        and "1 damaged images are delivered" in finding.found
        and "verify=full" in finding.remedy
    )


def test_a_crash_is_a_failure_that_says_what_to_do(manifest, monkeypatch):
    def crashes(*arguments):
        raise ChildError("crashed: its process ended with SIGSEGV")

    monkeypatch.setattr(images, "check_decoding", crashes)
    finding = images.images_of(manifest, dp.DaliConfig(decode="force_region"), 8, 60, CPU)
    assert (finding.status, finding.found) == ("failed", "crashed: its process ended with SIGSEGV")
    assert finding.remedy.startswith("loader.decode=whole")


@pytest.mark.parametrize(
    ("nvimgcodec", "nvjpeg", "options", "remedy"),
    [
        ((0, 8, 0), (13, 2, 0), {}, ["loader.decode=whole", "loader.hw_decoder_load=0"]),
        ((0, 8, 0), (12, 4, 0), {}, ["loader.hw_decoder_load=0"]),  # it is decode=whole already
        ((0, 9, 0), (12, 4, 0), {}, ["loader.hw_decoder_load=0"]),  # it is decode=whole already
        ((0, 9, 0), (12, 4, 0), {"decode": "force_region"}, ["loader.decode=whole"]),
        (
            (0, 9, 1),
            (12, 4, 0),
            {"decode": "region"},
            ["loader.decode=whole", "loader.jpeg_fancy_upsampling=false, with other pixels"],
        ),
        ((0, 8, 0), (12, 4, 0), {"decode": "whole", "exact": True}, []),
    ],
)
def test_the_remedy_is_what_these_options_leave(monkeypatch, nvimgcodec, nvjpeg, options, remedy):
    monkeypatch.setattr(
        decoding, "installed_versions", lambda: decoding.Versions(nvimgcodec, nvjpeg)
    )
    assert images.remedy(dp.DaliConfig(**options)) == ", or ".join(
        [*remedy, "loader=dali_cpu, which needs no GPU"]
    )


def test_the_doctor_tries_the_loader_that_is_named(manifest, monkeypatch):
    asked = []

    def records(manifest, exif, loader, batch_size, device, limit_s):
        asked.append(
            (len(manifest), Path(manifest.root).is_dir(), loader, batch_size, str(device), limit_s)
        )
        return FINE

    monkeypatch.setattr(images, "check_decoding", records)
    loader = dp.DaliConfig(decode="whole")
    checks = all_checks(DoctorConfig(loader=loader, batch_size=32, limit_s=50), manifest)
    for check in (
        each for each in checks if each.name in ("DALI", "your images") and each.group == "GPU"
    ):
        assert check.needs_gpu and check.run(1).status == "ok"
    made = len(KINDS) * len(SIZES) + 1
    assert asked == [
        (made, True, loader, 32, "cuda:0", 50),
        (len(manifest), True, loader, 32, "cuda:0", 50),
    ]
    without = [check.name for check in all_checks(DoctorConfig(), None) if check.group == "GPU"]
    assert without == ["driver and GPUs", "DALI", "JPEG engines"]
    assert (
        DoctorConfig().loader == dp.DaliConfig()
        and DoctorConfig(loader=DaliNativeConfig()).loader == DaliNativeConfig()
    )
