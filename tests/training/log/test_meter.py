import time

import pytest
import torch
from later import later

import dali_pipes as dp
from dali_pipes.loader.statistics import LoaderStats
from dali_pipes.training.log.meter import MEANS, SUMS, Meter, rates, sentence

launching = later("dali_pipes.training.launch")


def loader_stats():
    return LoaderStats(
        wait_s=1,
        fetch_wait_s=time.monotonic() / 10,
        fetched=3,
        fetched_bytes=10,
        found=2,
        retries=0,
        window=(0, 0),
    )


def slow(count, seconds):
    for _ in range(count):
        time.sleep(seconds)
        yield dp.Batch(torch.zeros(4, 3, 2, 2), torch.zeros(4, dtype=torch.long), torch.arange(4))


def test_waiting_for_batches_is_distinguished_from_using_them():
    meter = Meter(loader_stats, torch.device("cpu"))
    meter.start()
    for _ in meter.watch(slow(5, 0.02)):
        time.sleep(0.01)
        meter.add_losses([2.0])
    images_per_s, steps_per_s, waiting, fetching = meter.pace()
    meter.stop()
    figures = meter.over_ranks(launching.launch("fp32"))
    found = rates(figures)
    assert figures["images"] == 20 and found["loss"] == 2 and figures["wait_s"] >= 0.1
    assert figures["seconds"] - figures["wait_s"] >= 0.05
    assert (
        found["wait_share"]
        == pytest.approx(figures["wait_s"] / figures["seconds"])
        == pytest.approx(waiting, abs=0.05)
    )
    assert fetching == pytest.approx(0.1, abs=0.02) and found["fetch_wait_share"] == pytest.approx(
        0.1, abs=0.02
    )
    assert images_per_s == pytest.approx(4 * steps_per_s)


def test_waiting_for_shards_is_lost_only_with_the_batch():
    figures = dict.fromkeys((*SUMS, *MEANS), 0.0) | {
        "seconds": 10.0,
        "wait_s": 1.0,
        "fetch_wait_s": 4.0,
    }
    assert rates(figures)["fetch_wait_share"] == 0.1


def test_a_pause_does_not_count():
    meter = Meter(loader_stats, torch.device("cpu"))
    meter.start()
    meter.stop()
    time.sleep(0.1)
    meter.start()
    meter.stop()
    assert meter.figures["seconds"] < 0.1


def test_figures_are_gone_on_with():
    fabric, meter = launching.launch("fp32"), Meter(loader_stats, torch.device("cpu"))
    kept = {**meter.figures, "images": 640.0, "seconds": 5.0}
    meter.load(kept, fabric)
    assert meter.over_ranks(fabric) == kept


@pytest.mark.parametrize(
    ("share", "fetching", "message"),
    [
        (0.4, 0.0, "Input-bound: 40%"),
        (0.02, 0.0, "Compute-bound: only 2%"),
        (
            0.4,
            0.3,
            (
                "Fetch-bound: 40% of the training time went into waiting for images, 30% into "
                "waiting for shards"
            ),
        ),
    ],
)
def test_the_sentence(share, fetching, message):
    found = {
        "wait_share": share,
        "fetch_wait_share": fetching,
        "images_per_s": 600.0,
        "cpu_s_per_1000_images": 2.5,
    }
    said = sentence(found, "cuda")
    assert said.startswith(message) and "600 images/s, 2.5 CPU-s" in said and "cores" not in said
    assert ("would give 1,000" in said) == (share == 0.4 and not fetching)
    assert "share the same cores" in sentence(found, "cpu")
