from dataclasses import fields

import pytest
import torch
from tools.tuning.conftest import config

import dali_pipes as dp
from dali_pipes.errors import ConfigError
from dali_pipes.measure.arms import DaliNativeConfig, SyntheticConfig
from dali_pipes.tools.tuning.config import SearchConfig
from dali_pipes.tools.tuning.settings import search_space, settings


def names(setting):
    return [name for name, _ in setting.options]


def test_torch_has_workers_and_prefetch_and_keeps_what_changes_pixels():
    loader = dp.TorchConfig(decoder="torchvision")
    default, others = settings(config(loader), cores=4)
    assert str(default) == "num_workers=4 prefetch_factor=2 batch_size=64"
    assert {dict(each.options)["num_workers"] for each in others} == {2, 4, 6, 8}
    assert default not in others and len(others) == 4 * 3 - 1
    assert others[0].applied_to(loader).decoder == "torchvision"


def test_dali_on_the_cpu_has_threads_and_queue():
    default, others = settings(config(dp.DaliConfig(device="cpu", num_threads=5)), cores=2)
    assert names(default) == ["num_threads", "prefetch_queue_depth"]
    assert {dict(each.options)["num_threads"] for each in others} == {1, 2, 3, 5}


def test_dali_on_a_gpu_has_the_decoders_options_too(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    default, others = settings(config(dp.DaliConfig()), cores=8)
    assert names(default) == [
        "num_threads",
        "prefetch_queue_depth",
        "hw_decoder_load",
        "decode",
        "hybrid_huffman_threshold",
    ]
    assert len(others) == 4 * 3 * (1 + 6 + 1 + 3) - 1
    assert {dict(each.options)["hw_decoder_load"] for each in others} == {
        0,
        0.15,
        0.3,
        0.5,
        0.65,
        0.8,
        1,
    }
    assert {dict(each.options)["decode"] for each in others} == {
        "auto",
        "whole",
    }  # regions are refused where they are known to fail
    assert {dict(each.options)["hybrid_huffman_threshold"] for each in others} == {
        1_000_000,
        300_000,
        100_000,
        1,
    }
    decoder = ("hw_decoder_load", "decode", "hybrid_huffman_threshold")
    given = dict(default.options)
    assert (
        max(sum(dict(each.options)[name] != given[name] for name in decoder) for each in others)
        == 1
    )
    assert names(settings(config(dp.DaliConfig(device="cpu")), cores=8)[0]) == [
        "num_threads",
        "prefetch_queue_depth",
    ]


def test_batch_sizes_and_values_that_are_asked_for():
    loader = dp.TorchConfig(num_workers=1)
    asked = SearchConfig(num_workers=[3], prefetch_factor=[2])
    default, others = settings(config(loader, batch_sizes=[64, 128], search=asked), cores=8)
    message = [str(each) for each in (default, *others)]
    assert message == [
        f"num_workers={workers} prefetch_factor=2 batch_size={size}"
        for size in (64, 128)
        for workers in (1, 3)
    ]


def test_images_in_flight():
    _, torchs = settings(config(batch_sizes=[32]), cores=2)
    by_name = {str(each): each.in_flight for each in torchs}
    assert by_name["num_workers=4 prefetch_factor=4 batch_size=32"] == 512
    _, dalis = settings(config(dp.DaliConfig(device="cpu")), cores=2)
    assert {each.in_flight for each in dalis} == {64, 128, 256}


def test_without_workers_nothing_is_prefetched():
    default, others = settings(config(dp.TorchConfig(num_workers=0)), cores=2)
    assert default.in_flight == 128 and all(dict(each.options)["num_workers"] for each in others)


@pytest.mark.parametrize(
    "loader", [dp.TorchConfig(), dp.DaliConfig(device="cpu"), dp.DaliConfig(device="gpu")]
)
def test_what_is_searched_are_options_of_the_loader(loader):
    assert search_space(loader, 4).keys() <= {each.name for each in fields(loader)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"loader": SyntheticConfig(), "loader_name": "synthetic"},
            "loader=synthetic has no settings to search",
        ),
        (
            {"loader": dp.TfDataConfig(), "loader_name": "tfdata"},
            "choose dali, dali_cpu, torch or torch_torchvision",
        ),
        (
            {"loader": DaliNativeConfig(), "loader_name": "dali_native"},
            "loader=dali_native has no settings to search",
        ),
        (
            {"search": SearchConfig(decode=["whole"])},
            r"search.decode: .* that is num_workers, prefetch_factor",
        ),
        ({"search": SearchConfig(num_workers=[])}, "search.num_workers is empty"),
        (
            {"search": SearchConfig(num_workers=[-1])},
            "TorchConfig.num_workers is -1; it must be at least 0",
        ),
        (
            {"search": SearchConfig(num_workers=[1], prefetch_factor=[2])},
            "nothing to search: num_workers=1",
        ),
    ],
)
def test_what_cannot_be_searched(options, message):
    with pytest.raises(ConfigError, match=message):
        settings(config(**{"loader_name": "torch"} | options), cores=2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(ConfigError, match=r"loader.device=gpu, but PyTorch sees no GPU"):
        settings(config(dp.DaliConfig(device="gpu")), cores=2)
