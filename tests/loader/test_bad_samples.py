"""Promise 4: a bad image is named, costs no other sample, and ends a run only if that is what was
asked for.
"""

import collections
import errno
import itertools
import json
import os
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from faults import FAULTS, TRUNCATED
from gpu_backends import GPU_BACKENDS, makes_pixels, needs_cuda

import dali_pipes as dp
from dali_pipes.backends.torch.backend import TorchBackend
from dali_pipes.data.reader import Reader
from dali_pipes.loader.bad_files import find_bad_samples

CONFIGS = {
    "dali_region": dp.DaliConfig(device="cpu"),
    "dali_whole": dp.DaliConfig(device="cpu", decode="whole"),
    "torch_pil": dp.TorchConfig(num_workers=1),
    "torch_torchvision": dp.TorchConfig(num_workers=1, decoder="torchvision"),
}
DECODES_ON_GPU = ("dali_gpu", "dali_gpu_regions")
ON_GPU = needs_cuda(*DECODES_ON_GPU, "torch_to_gpu")
every_backend = pytest.mark.parametrize("name", [*CONFIGS, *ON_GPU])
cpu_and_gpu = pytest.mark.parametrize("name", ["dali_region", *needs_cuda("dali_gpu")])


def may_be_delivered(name, fault):
    """nvJPEG may make an image of the part of a JPEG that is there (docs/inputs.md); every decoder
    of the CPU refuses it.
    """
    return name in DECODES_ON_GPU and fault == TRUNCATED


def build(manifest, name, batch_size=8, **options):
    options = {"transform": dp.TrainTransform(size=32), "last_batch": "partial", **options}
    configs = {**CONFIGS, **GPU_BACKENDS, "torch_inline": dp.TorchConfig(num_workers=0)}
    return dp.build_loader(manifest, configs[name], batch_size=batch_size, **options)


def epoch(loader):
    return [batch.ids.tolist() for batch in loader]


@pytest.mark.parametrize("name", needs_cuda(*DECODES_ON_GPU))
def test_a_gpu_may_deliver_a_truncated_image_and_loses_no_other(scanned, name):
    FAULTS[TRUNCATED](scanned.path(20))
    with build(
        scanned, name, shuffle=False, on_bad_sample="substitute", max_bad_fraction=1
    ) as loader:
        found = [sample for ids in epoch(loader) for sample in ids]
        named = {sample for sample, _, _ in loader.bad_samples}
    assert (
        named <= {20}
        and set(found) == set(range(len(scanned))) - named
        and len(found) == len(scanned)
    )


@pytest.mark.few
@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *itertools.product(CONFIGS, FAULTS),
        *(
            pytest.param(name, fault, marks=pytest.mark.needs_cuda)
            for name, fault in itertools.product([*DECODES_ON_GPU, "torch_to_gpu"], FAULTS)
            if not may_be_delivered(name, fault)
        ),
    ],
)
def test_raise_names_the_file_and_the_reason(scanned, name, fault):
    FAULTS[fault](scanned.path(20))
    with build(scanned, name, shuffle=False) as loader, pytest.raises(dp.BadSampleError) as caught:
        for number, batch in enumerate(loader):
            assert batch.ids.tolist() == list(range(8 * number, 8 * number + 8))
    assert number == 1
    assert [(sample, path) for sample, path, _ in caught.value.bad_samples] == [
        (20, str(scanned.path(20)))
    ]
    assert str(scanned.path(20)) in str(caught.value) and "on_bad_sample='substitute'" in str(
        caught.value
    )
    assert caught.value.bad_samples[0][2]


def test_a_batch_that_fails_for_no_file_of_its_own(scanned, monkeypatch):
    """The error is reported as it is, and what can be said of the files; the only one of a batch is
    named.
    """
    monkeypatch.setattr(TorchBackend, "stream", lambda self, planned: iter(map(explode, planned)))
    for batch_size, message in (
        (8, "none of its 8 files is to blame"),
        (1, f"its only file, {scanned.path(0)},"),
    ):
        with (
            build(scanned, "torch_pil", batch_size, shuffle=False) as loader,
            pytest.raises(RuntimeError) as caught,
        ):
            next(iter(loader))
        assert str(caught.value) == "no memory" and message in caught.value.__notes__[0]


def explode(planned):
    raise RuntimeError("no memory")


@pytest.mark.few
@every_backend
def test_substitute_loses_no_other_sample(scanned, name):
    """All faults at once, spread over the epoch; then a second epoch, in which they are known."""
    victims = {
        4 * number + 1: fault
        for number, fault in enumerate(FAULTS)
        if not may_be_delivered(name, fault)
    }
    for sample, fault in victims.items():
        FAULTS[fault](scanned.path(sample))
    with build(scanned, name, on_bad_sample="substitute", max_bad_fraction=0.5) as loader:
        for number in range(2):
            assert loader.epoch == number
            batches = epoch(loader)
            for step, ids in enumerate(batches):
                planned = loader.plan.batch(number, step).ids.tolist()
                assert len(ids) == len(planned)
                assert all(
                    one == two or (one in victims and two in set(planned) - set(victims))
                    for one, two in zip(planned, ids, strict=True)
                )
            assert {sample for ids in batches for sample in ids} == set(range(len(scanned))) - set(
                victims
            )
        assert sorted(sample for sample, _, _ in loader.bad_samples) == sorted(victims)
        assert {path for _, path, _ in loader.bad_samples} == {
            str(scanned.path(sample)) for sample in victims
        }
        assert all(why for _, _, why in loader.bad_samples)


@every_backend
def test_the_substituted_pixels_are_those_of_the_substitute(scanned, name):
    FAULTS["zero bytes"](scanned.path(3))
    with build(
        scanned, name, shuffle=False, on_bad_sample="substitute", max_bad_fraction=1
    ) as loader:
        first = next(iter(loader))
    assert first.ids.tolist() == [0, 1, 2, 4, 4, 5, 6, 7]
    assert first.labels[3] == first.labels[4]
    difference = (first.images[3] - first.images[4]).abs()
    if not makes_pixels(name):
        return
    # of one batch a part goes to the JPEG engines, which may round otherwise
    if name.startswith("dali_gpu"):
        assert difference.mean() < 0.5 / 255 / 0.225
    else:
        assert difference.max() == 0


@every_backend
def test_too_many_bad_ones_stop_the_run(scanned, name):
    for sample in (3, 12, 21):
        FAULTS["garbage"](scanned.path(sample))
    with build(
        scanned, name, shuffle=False, on_bad_sample="substitute", max_bad_fraction=0.06
    ) as loader:
        with pytest.raises(
            dp.BadSampleError, match="3 of 37 images are bad so far, more than max_bad_fraction"
        ):
            epoch(loader)
        assert len(loader.bad_samples) == 3


@every_backend
def test_a_batch_without_a_good_sample_takes_those_of_the_next_one(scanned, name):
    for sample in range(8, 16):
        FAULTS["zero bytes"](scanned.path(sample))
    with build(
        scanned, name, shuffle=False, on_bad_sample="substitute", max_bad_fraction=1
    ) as loader:
        for _ in range(2):  # in the second epoch all bad ones are known
            batches = list(loader)
            assert [batch.ids.tolist() for batch in batches[:3]] == [
                list(range(8)),
                list(range(16, 24)),
                list(range(16, 24)),
            ]
            assert batches[1].labels.tolist() == scanned.labels[16:24].tolist()
            assert len(batches) == len(loader)


@pytest.mark.few
@every_backend
def test_where_no_sample_is_good(scanned, name):
    few = scanned.subset(np.arange(6))
    for sample in range(6):
        FAULTS["zero bytes"](few.path(sample))
    with build(
        few, name, 2, shuffle=False, on_bad_sample="substitute", max_bad_fraction=1
    ) as loader:
        for number in range(2):
            loader.set_epoch(number)
            with pytest.raises(
                dp.BadSampleError,
                match=f"epoch {number}, step 0: all 2 images of the batch are bad, and those",
            ):
                list(loader)


@cpu_and_gpu
def test_shards_stay_in_step(scanned, name):
    FAULTS["garbage"](scanned.path(5))
    ranks = [
        build(
            scanned, name, 4, rank=dp.Rank(index, 3), on_bad_sample="substitute", max_bad_fraction=1
        )
        for index in range(3)
    ]
    delivered = [[epoch(loader) for _ in range(2)] for loader in ranks]
    [loader.close() for loader in ranks]
    assert [[len(each) for each in epochs] for epochs in delivered] == [
        [len(loader)] * 2 for loader in ranks
    ]
    counts = collections.Counter(
        sample for epochs in delivered for ids in epochs[1] for sample in ids
    )
    assert set(counts) == set(range(37)) - {5} and sum(counts.values()) == 37
    assert [loader.epoch for loader in ranks] == [2, 2, 2]


@cpu_and_gpu
def test_resume_after_a_substitution_is_the_same_stream(scanned, name):
    FAULTS["garbage"](scanned.path(9))
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 1}
    with build(scanned, name, **options) as loader:
        whole = epoch(loader) + epoch(loader)
    with build(scanned, name, **options) as loader:
        batches = iter(loader)
        start = [next(batches).ids.tolist() for _ in range(3)]
        state = loader.state_dict()
    with build(scanned, name, **options) as loader:
        loader.load_state_dict(state)
        assert start + epoch(loader) + epoch(loader) == whole


@pytest.fixture
def as_nobody(tmp_path):
    """Root may read everything; this user may read the folder, and no file that the test
    forbids.
    """
    for folder in [tmp_path, tmp_path / "set", *tmp_path.parents[:3]]:
        folder.chmod(folder.stat().st_mode | 0o055)
    yield lambda: (os.setegid(65534), os.seteuid(65534))
    os.seteuid(0)
    os.setegid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user who may not read a file")
@pytest.mark.parametrize(
    "config",
    [dp.DaliConfig(device="cpu"), dp.TorchConfig(num_workers=0)],
    ids=str,
)
def test_a_file_that_may_not_be_read(scanned, as_nobody, config):
    options = {"transform": dp.TrainTransform(size=32), "batch_size": 8, "shuffle": False}

    def load():
        with dp.build_loader(scanned, config, **options) as loader:
            list(loader)

    load()  # what it imports nobody may read either where Python is in the home folder of root
    scanned.path(6).chmod(0)
    as_nobody()
    with pytest.raises(dp.BadSampleError) as caught:
        load()
    assert caught.value.bad_samples[0][1:] == (str(scanned.path(6)), "permission denied")


FAIL_OFTEN = """
import json, sys
import dali_pipes as dp

manifest, message = dp.Manifest.load(sys.argv[1]), []
config = dp.DaliConfig(**json.loads(sys.argv[2]))
options = {"transform": dp.TrainTransform(), "batch_size": 32, "shuffle": False}
for _ in range(25):
    with dp.build_loader(manifest, config, **options) as loader:
        try:
            next(iter(loader))
        except dp.BadSampleError as error:
            message.append(sorted(path for _, path, _ in error.bad_samples))
print(json.dumps(message))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"device": "cpu", "num_threads": 2},
        {"device": "cpu", "num_threads": 4},
        pytest.param(
            {"device": "gpu", "decode": "force_region", "num_threads": 4},
            marks=pytest.mark.needs_cuda,
        ),
        # with two decoders that use the engine, and one of the CPU beside them
        pytest.param(
            {"device": "gpu", "num_threads": 8, "cpu_share": 0.3}, marks=pytest.mark.needs_cuda
        ),
    ],
)
def test_many_pipelines_over_garbage_headers_and_empty_files_never_crash(
    photographs, tmp_path, options
):
    """25 failing pipelines in each of four processes; decoders that start on garbage crash in
    batches of 32, though not of 8.
    """
    shutil.copytree(photographs.root, tmp_path / "set")
    scanned = dp.Manifest.scan(tmp_path / "set", progress=False)
    places = {8: "garbage", 10: "header only", 13: "zero bytes"}
    for place, fault in places.items():
        FAULTS[fault](scanned.path(place))
    scanned.save(tmp_path / "m.parquet")
    command = [sys.executable, "-c", FAIL_OFTEN, str(tmp_path / "m.parquet"), json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    assert json.loads(done.stdout) == [sorted(str(scanned.path(place)) for place in places)] * 25


@pytest.mark.parametrize("verify", ["header", "full"])
def test_scan_finds_what_is_broken(scanned, verify):
    for number, fault in enumerate(FAULTS):
        FAULTS[fault](scanned.path(number))
    names = list(FAULTS)
    again = dp.Manifest.scan(scanned.root, verify=verify, progress=False)
    problems = dict(again.problems)
    found = {
        fault
        for number, fault in enumerate(names)
        if str(scanned.path(number).relative_to(scanned.root)) in problems
    }
    # not there any more, or a good image
    unseen = {"deleted", "a folder in its place", "another size"}
    assert found == set(FAULTS) - unseen - ({TRUNCATED} if verify == "header" else set())
    assert len(again) + len(again.problems) == 37 - 2 + ("a folder in its place" in found)


def test_a_full_scan_is_remembered_and_a_header_scan_does_not_count_as_one(
    scanned, tmp_path, monkeypatch
):
    from dali_pipes.data.sources.rows import files

    looked = []
    original = files.read_header
    monkeypatch.setattr(
        files,
        "read_header",
        lambda path, check: looked.append(check.verify) or original(path, check),
    )
    part = scanned.subset(np.arange(10))
    for sample in range(10, 37):
        scanned.path(sample).unlink()
    for verify, reads in (("header", 10), ("full", 10), ("full", 0), ("header", 0)):
        looked.clear()
        assert (
            len(
                dp.Manifest.scan(
                    part.root, verify=verify, cache=tmp_path / "c.parquet", progress=False
                )
            )
            == 10
        )
        assert looked == [verify] * reads


def move_back(manifest, samples):
    for sample in samples:
        manifest.path(sample).with_suffix(".away").rename(manifest.path(sample))


@pytest.mark.few
@every_backend
@pytest.mark.parametrize("policy", ["raise", "substitute"])
def test_files_that_were_away_for_a_moment_cost_nothing(scanned, name, policy, monkeypatch):
    """As on a file server: they are back when the culprit is looked for. The batch is tried once
    more, and that is counted.
    """
    away = [5, 6, 20]
    for sample in away:
        scanned.path(sample).rename(scanned.path(sample).with_suffix(".away"))

    def come_back(*arguments):
        move_back(scanned, [each for each in away if not scanned.path(each).exists()])
        return find_bad_samples(*arguments)

    monkeypatch.setattr("dali_pipes.loader.bad_samples.find_bad_samples", come_back)
    with build(scanned, name, shuffle=False, on_bad_sample=policy) as loader:
        assert sorted(sample for ids in epoch(loader) for sample in ids) == list(range(37))
        assert loader.bad_samples == [] and loader.stats().retries >= 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES])
def test_a_read_that_fails_once_is_tried_again(scanned, monkeypatch, number):
    failing, opened = {str(scanned.path(3))}, os.open

    def fails_once(path, *arguments, **options):
        if path in failing:
            failing.remove(path)
            raise OSError(number, os.strerror(number), path)
        return opened(path, *arguments, **options)

    monkeypatch.setattr(os, "open", fails_once)
    with build(scanned, "torch_inline", shuffle=False) as loader:
        assert len(epoch(loader)) == 5 and not failing
        assert loader.bad_samples == [] and loader.stats().retries == 1


def test_a_file_that_is_gone_is_not_waited_for(scanned, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("it waited"))
    scanned.path(3).unlink()
    with (
        build(scanned, "torch_inline", shuffle=False) as loader,
        pytest.raises(dp.BadSampleError, match="no such file"),
    ):
        epoch(loader)


@pytest.mark.parametrize(
    "error",
    [OSError(errno.EMFILE, "Too many open files"), MemoryError()],
    ids=["descriptors", "memory"],
)
def test_what_the_process_lacks_blames_no_file(scanned, monkeypatch, error):
    """An error that is no decoder's says nothing about the image that was being read."""

    def fails(self, extent):
        raise error

    monkeypatch.setattr(Reader, "read", fails)
    with build(
        scanned, "torch_inline", shuffle=False, on_bad_sample="substitute", max_bad_fraction=1
    ) as loader:
        with pytest.raises(type(error)):
            epoch(loader)
        assert loader.bad_samples == []


@pytest.mark.few
@pytest.mark.parametrize("name", ["dali_region", "torch_pil", "torch_torchvision"])
@pytest.mark.parametrize(
    ("samples", "batch_size"),
    [([0, 1, 2, 3, 4], 4), ([4, 0], 1), ([0, 1, 4], 3), ([4, 4, 4], 3), ([4, 4, 4, 0], 3)],
    ids=[
        "alone in the last batch",
        "batches of one",
        "with others",
        "nothing else there",
        "a whole batch of it",
    ],
)
def test_a_file_that_only_the_loader_refuses_is_named_and_replaced(
    scanned, name, samples, batch_size, monkeypatch
):
    """Pillow, which looks for the culprit, is content with it."""
    FAULTS[TRUNCATED](scanned.path(4))
    monkeypatch.setattr("dali_pipes.loader.bad_files.decode_size", lambda encoded: None)
    few = scanned.subset(np.array(samples))
    with (
        build(few, name, batch_size, shuffle=False) as loader,
        pytest.raises(dp.BadSampleError, match="this loader cannot decode it"),
    ):
        epoch(loader)

    with build(
        few, name, batch_size, shuffle=False, on_bad_sample="substitute", max_bad_fraction=1
    ) as loader:
        if set(samples) == {4}:
            with pytest.raises(dp.BadSampleError, match="all 3 images of the batch are bad"):
                epoch(loader)
            return
        delivered = epoch(loader)
        assert sum(map(len, delivered)) == len(samples)
        assert {int(few.labels[each]) for ids in delivered for each in ids} == {
            int(scanned.labels[each]) for each in {*samples} - {4}
        }
        assert {path for _, path, _ in loader.bad_samples} == {str(scanned.path(4))}


@cpu_and_gpu
def test_a_bad_image_in_the_first_batch_does_not_hold_an_epoch_for_ever(scanned, name):
    FAULTS["garbage"](scanned.path(2))
    with build(scanned, name, shuffle=False) as loader:
        for number in range(3):
            assert loader.epoch == number or loader.state_dict()["samples"] == 0
            with pytest.raises(dp.BadSampleError, match=f"epoch {number}, step 0"):
                epoch(loader)
