"""Regions or whole images: the table of known faults under versions that are made up, and the
versions that are installed.
"""

import logging
from importlib.metadata import version

import pytest

import dali_pipes as dp
from dali_pipes.backends.dali import decoding
from dali_pipes.backends.dali.decoding import Versions, choose, installed_versions
from dali_pipes.measure.arms import SyntheticConfig

OLD, CRASHING, LATER, UNKNOWN = (0, 8, 0), (0, 9, 0), (0, 10, 0), (0, 0, 0)
CUDA_12, FIXED = (12, 4, 0), (13, 2, 0)


@pytest.fixture
def installed(monkeypatch):
    def fake(nvimgcodec, nvjpeg):
        monkeypatch.setattr(decoding, "installed_versions", lambda: Versions(nvimgcodec, nvjpeg))

    return fake


def chosen(on_gpu=True, **options):
    return choose(dp.DaliConfig(**options), on_gpu)


@pytest.mark.parametrize("fancy", [True, False])
@pytest.mark.parametrize("nvjpeg", [CUDA_12, FIXED])
@pytest.mark.parametrize("nvimgcodec", [OLD, CRASHING, LATER, UNKNOWN])
def test_auto_takes_regions_where_they_are_decoded_rightly_on_the_gpu(
    installed, nvimgcodec, nvjpeg, fancy
):
    installed(nvimgcodec, nvjpeg)
    found = chosen(jpeg_fancy_upsampling=fancy)
    old_nvjpeg = fancy and nvjpeg == CUDA_12
    assert found.region == (nvimgcodec not in (CRASHING, UNKNOWN) and not old_nvjpeg)
    assert ("issue 55" in found.why) == (nvimgcodec in (CRASHING, UNKNOWN))
    assert ("decoded on the CPU" in found.why) == (nvimgcodec in (LATER, CRASHING) and old_nvjpeg)
    assert ("the outermost pixel" in found.why) == (nvimgcodec in (OLD, UNKNOWN) and old_nvjpeg)
    assert str(Versions(nvimgcodec, nvjpeg)) in found.why and "\n" not in str(found)


def test_regions_that_are_known_to_be_decoded_wrongly_are_refused_with_the_ways_out(installed):
    installed(CRASHING, CUDA_12)
    with pytest.raises(dp.ConfigError) as caught:
        chosen(decode="region")
    text = str(caught.value)
    assert (
        "DaliConfig.decode is region, but with nvImageCodec 0.9.0, nvJPEG 12.4.0" in text
        and "issue 55" in text
    )
    assert "auto" in text and "set DaliConfig(decode='whole')" in text
    assert "DaliConfig(decode='force_region')" in text
    assert "jpeg_fancy_upsampling=False" not in text  # it would not help against the crash


def test_an_option_that_avoids_the_fault_is_named_too(installed):
    installed(LATER, CUDA_12)
    with pytest.raises(
        dp.ConfigError,
        match=(
            r"or DaliConfig\(jpeg_fancy_upsampling=False\), with other pixels; "
            r"DaliConfig\(decode='force_region'\)"
        ),
    ):
        chosen(decode="region")
    assert chosen(decode="region", jpeg_fancy_upsampling=False).region


def test_force_region_warns_and_takes_them(installed, caplog):
    installed(CRASHING, CUDA_12)
    with caplog.at_level(logging.WARNING):
        assert chosen(decode="force_region").region
    assert "issue 55" in caplog.text
    caplog.clear()
    installed(OLD, FIXED)
    assert chosen(decode="force_region").region and not caplog.text


def test_force_region_cannot_be_exact_where_pixels_differ_between_runs(installed):
    installed(OLD, CUDA_12)
    with pytest.raises(
        dp.ConfigError,
        match=r"exact promises the same pixels in each run, but with decode=force_region",
    ):
        chosen(decode="force_region", exact=True)
    assert chosen(decode="force_region", exact=True, jpeg_fancy_upsampling=False).region
    assert (
        not chosen(decode="force_region").repeats
        and chosen(decode="force_region", jpeg_fancy_upsampling=False).repeats
    )
    assert not chosen(exact=True).region


@pytest.mark.parametrize("decode", ["auto", "region", "force_region", "whole"])
def test_on_the_cpu_no_fault_applies(installed, decode):
    installed(CRASHING, CUDA_12)
    assert chosen(on_gpu=False, decode=decode).region == (decode != "whole")


def test_versions_are_those_of_the_installed_libraries():
    """Read from the libraries without a GPU; the wheels' own numbers have one place more."""
    found = installed_versions()
    for names, numbers in (
        (("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13"), found.nvimgcodec),
        (("nvidia-nvjpeg-cu12", "nvidia-nvjpeg"), found.nvjpeg),
    ):
        assert ".".join(map(str, numbers)) in {wheel_version(name) for name in names}


def wheel_version(name):
    try:
        return ".".join(version(name).split(".")[:3])
    except ModuleNotFoundError:
        return None


def test_libraries_that_are_not_there_have_no_version(monkeypatch):
    monkeypatch.setattr(decoding, "find_spec", lambda name: None)
    installed_versions.cache_clear()
    try:
        assert installed_versions() == Versions(UNKNOWN, UNKNOWN)
        assert str(installed_versions()) == "nvImageCodec ?, nvJPEG ?"
    finally:
        installed_versions.cache_clear()


@pytest.mark.parametrize(
    "config",
    [
        dp.DaliConfig(device="cpu"),
        dp.TorchConfig(num_workers=0),
        SyntheticConfig(),
    ],
)
def test_every_loader_explains_itself_in_one_line(manifest, config):
    with dp.build_loader(
        manifest, config, transform=dp.TrainTransform(size=32), batch_size=4, device="cpu"
    ) as loader:
        text = loader.explain()
    assert text and "\n" not in text
    if isinstance(config, dp.DaliConfig):
        assert "planned regions only" in text and "on the CPU" in text
