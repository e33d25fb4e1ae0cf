"""The check of decoding, on the CPU; and what nvImageCodec says, in its own words."""

import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import dali_pipes as dp
from dali_pipes.system.child import ChildError
from dali_pipes.tools.doctor import decoding_compare
from dali_pipes.tools.doctor.decoding_check import (
    PARTS_ON_GPU,
    ComparedDecoding,
    Message,
    check_decoding,
    cpu_fallbacks,
    messages,
)

CPU = torch.device("cpu")
GATED = (
    "ROI decode with fancy upsampling may produce wrong results on image edge (1 pixel "
    "wide) with nvJPEG < 13.2 "
    "(available in CTK 13.3). To enable anyway, set enable_roi_fancy_upsampling=1"
)  # nvImageCodec 0.9.0, extensions/libnvjpeg_ext.so
LINE = "\x1b[33m[WARNING] \x1b[0m[{decoder}] {text}\n"  # src/default_debug_messenger.h
FINE = {
    "images": 9,
    "mean": 0.1,
    "far": {},
    "refused": [],
    "accepted": [],
    "cpu_ms": 1.0,
    "cpu_ms_on_cpu": 2.0,
}
FINE |= {
    "engine_load": 0.65,
    "nvjpg": None,
    "sm": None,
    "digest": "ab",
    "decodes": "by a decoder",
    "fallbacks": {},
}
AS_DEAR = {"cpu_ms": 2.1, "nvjpg": 0.0}
SEEMS = (
    "decoded on the CPU, as it seems: it takes 2.10 CPU-ms an image, a loader on the CPU "
    "2.00, and the counter of the JPEG engines "
)


def test_a_real_warning_of_nvimagecodec_is_read(tmp_path):
    """Its decoder for the CPU, asked for a region outside of the image, warns as the others do."""
    file = io.BytesIO()
    Image.new("RGB", (64, 48)).save(file, "JPEG")
    (tmp_path / "a.jpg").write_bytes(file.getvalue())
    code = """
import sys
from nvidia import nvimgcodec
region = nvimgcodec.Region(0, 0, 400, 400)
stream = nvimgcodec.CodeStream(sys.argv[1]).get_sub_code_stream(region=region)
backends = [nvimgcodec.Backend(nvimgcodec.CPU_ONLY)]
nvimgcodec.Decoder(device_id=-99999, backends=backends).decode(stream)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.jpg")],
        capture_output=True,
        text=True,
        check=False,
    )
    found = messages(done.stderr)
    assert found and {each.severity for each in found} <= {"WARNING", "ERROR"}, done.stderr
    assert len(found) == done.stderr.count("[WARNING]") + done.stderr.count("[ERROR]")
    assert all(each.decoder and each.text and "\x1b" not in each.text for each in found)


def test_what_goes_to_the_cpu_is_what_the_last_decoder_on_the_gpu_declines():
    output = "something else\n" + "".join(
        LINE.format(decoder=decoder, text=text)
        for decoder, text in [
            ("nvjpeg_hw_decoder", GATED),
            ("nvjpeg_cuda_decoder", GATED),
            ("nvjpeg_cuda_decoder", GATED),
            (
                "nvjpeg_cuda_decoder",
                (
                    "Fancy upsampling enabled; performance may be worse compared to simple "
                    "upsampling"
                ),
            ),
            ("nvjpeg_cuda_decoder", "nvjpegBufferDeviceResize not available. Skip preallocation"),
        ]
    )
    output += LINE.format(
        decoder="nvjpeg_cuda_decoder", text="Could not decode jpeg code stream"
    ).replace("WARNING", "ERROR")
    assert messages(output)[0] == Message("WARNING", "nvjpeg_hw_decoder", GATED)
    assert cpu_fallbacks(messages(output)) == [GATED, GATED]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, None),
        ({"fallbacks": {GATED: 7}}, f"decoded on the CPU, at least 7 × nvImageCodec: {GATED}"),
        (
            {"far": {"a.jpg": 2.0, "b.jpg": 30.0}},
            "2 of 9 images have other pixels than on the CPU, b.jpg by 30.0 of 255",
        ),
        ({"refused": ["a.jpg"]}, "1 images are refused that the CPU decodes, such as a.jpg"),
        ({"accepted": ["a.jpg", "b.jpg"]}, None),
        (AS_DEAR, f"{SEEMS}stayed at 0%"),
        (AS_DEAR | {"nvjpg": 0.2}, None),  # the engines worked
        # nobody knows whether they did, or whether there are any
        (AS_DEAR | {"nvjpg": None}, None),
        # Huffman decoding for nvJPEG's CUDA decoder is CPU time as well
        (AS_DEAR | {"cpu_ms": 1.9}, None),
        # the CPU, or a GPU whose engines were given nothing
        (AS_DEAR | {"engine_load": 0.0}, None),
        (
            AS_DEAR | {"fallbacks": {GATED: 7}},
            f"decoded on the CPU, at least 7 × nvImageCodec: {GATED}",
        ),
    ],
)
def test_each_fault_is_named(change, fault):
    assert ComparedDecoding(**FINE | change).faults() == ([fault] if fault else [])


def test_a_damaged_image_that_is_delivered_is_a_doubt():
    assert ComparedDecoding(**FINE).doubts() == []
    message = f"2 damaged images are delivered that the CPU refuses, such as a.jpg: {PARTS_ON_GPU}"
    assert ComparedDecoding(**FINE | {"accepted": ["a.jpg", "b.jpg"]}).doubts() == [message]


@pytest.mark.slow
def test_the_cpu_against_itself(scanned):
    """In a process of its own, with a damaged file among them, which both refuse."""
    damaged = scanned.path(3)
    damaged.write_bytes(damaged.read_bytes()[:-900])
    found = check_decoding(scanned, "ignore", dp.DaliConfig(device="cpu"), 16, CPU)
    assert found.images == len(scanned) - 1 and found.mean == 0 and found.faults() == []
    assert (
        found.cpu_ms > 0
        and found.cpu_ms_on_cpu > 0
        and found.nvjpg is None
        and found.engine_load == 0
    )
    assert found.decodes.startswith("DALI") and "on the CPU decodes" in found.decodes


def test_pixels_that_differ_are_seen_image_by_image(manifest, monkeypatch):
    real = decoding_compare._run

    def swapped(manifest, exif, config, *more):
        run = real(manifest, exif, config, *more)
        if config.num_threads != 1:
            return run
        run.pixels[3] = np.roll(run.pixels[3], 9, axis=1)
        return run._replace(bad={"lost.jpg"})

    monkeypatch.setattr(decoding_compare, "SECONDS", 0.1)
    plain = decoding_compare.compare(
        manifest_file(manifest), "ignore", {"device": "cpu", "num_threads": 1}, 8, "cpu"
    )
    monkeypatch.setattr(decoding_compare, "_run", swapped)
    job = {"device": "cpu", "num_threads": 1}
    found = decoding_compare.compare(manifest_file(manifest), "ignore", job, 8, "cpu")
    assert list(found["far"]) == [manifest.name(3)] and found["refused"] == ["lost.jpg"]
    assert plain["far"] == {} and plain["digest"] != found["digest"]
    other_batch = decoding_compare.compare(
        manifest_file(manifest), "ignore", {"device": "cpu"}, 16, "cpu"
    )
    assert other_batch["digest"] == plain["digest"]


def manifest_file(manifest):
    file = str(manifest.root) + "/../checked.parquet"
    manifest.save(file)
    return file


@pytest.mark.slow
def test_a_check_that_fails_says_why(manifest):
    """On a machine without a GPU the child fails as it would where the driver is broken."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ChildError, match=r"^RuntimeError: Found no NVIDIA driver"):
        check_decoding(manifest, "ignore", dp.DaliConfig(device="gpu"), 8, torch.device("cuda", 0))


def test_what_a_gpu_may_do_with_a_truncated_image_is_said_once():
    """By the doubt of a test of decoding, and by the documents, which the tests of bad samples hold
    a GPU to.
    """
    docs = Path(__file__).parents[3] / "docs"
    assert PARTS_ON_GPU in ComparedDecoding(**FINE | {"accepted": ["x.jpg"]}).doubts()[0]
    for page in ("inputs.md", "reliability.md", "doctor.md"):
        assert PARTS_ON_GPU in " ".join((docs / page).read_text().split()), page
