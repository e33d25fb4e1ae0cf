"""The executor: works in order, a bounded number of them ahead, whatever fails or comes late."""

import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import pytest
import torch
from lazy_works import made_by, steps_apart, values_of, waits_for, work_of
from PIL import Image
from torchvision import transforms as T
from torchvision.io import read_image

import dali_pipes as dp
from dali_pipes.adapters.lazy.compiler import executor as executor_module
from dali_pipes.adapters.lazy.compiler import lines
from dali_pipes.adapters.lazy.compiler.executor import Executor
from dali_pipes.adapters.lazy.recipes import Changed
from dali_pipes.adapters.lazy.steps.step import STEPS
from dali_pipes.backends.backend import Decoded, Description
from dali_pipes.errors import ConfigError

pytestmark = pytest.mark.usefixtures("libraries_know_what_waits")
CPU = torch.device("cpu")
BACKENDS = {
    "torch": dp.TorchConfig(num_workers=0),
    "workers": dp.TorchConfig(num_workers=1),
    "dali": dp.DaliConfig(device="cpu", num_threads=1),
    "graph": dp.DaliConfig(device="cpu", num_threads=1, resize="dali"),
}
BATCH = 4


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    found = [folder / f"{at}.jpg" for at in range(8 * BATCH)]
    for path in found:
        coarse = Image.fromarray(rng.integers(0, 256, (7, 9, 3), np.uint8))
        coarse.resize((61, 47), Image.Resampling.BICUBIC).save(path, quality=92)
        os.utime(path, (0, 0))  # files that were just written are kept as bytes
    return list(map(str, found))


@pytest.fixture
def start():
    made = []

    def starting(backend="dali", **options):
        config = BACKENDS.get(backend) if isinstance(backend, str) else backend
        made.append(Executor(config, CPU, BATCH, **{"ahead": 8} | options))
        return made[-1]

    yield starting
    for each in made:
        each.close()


def program(path, size=(20, 24)):
    picture = Image.open(path)
    picture.load()
    return T.functional.to_tensor(picture.resize(size))


def bytes_of(path, size=(20, 24)):
    """Of which no part can be made, if all cannot."""
    picture = Image.open(path)
    picture.load()
    return T.functional.pil_to_tensor(picture.resize(size))


def batches(paths):
    return [paths[at : at + BATCH] for at in range(0, len(paths), BATCH)]


def works_of(paths, program=program):
    return (work_of(waits_for(program, batch)) for batch in batches(paths))


def assert_like(values, paths, program=program, most=3.0):
    for value, path in zip(values, paths, strict=True):
        assert steps_apart(value, program(path), 1 / 255).max() <= most


@pytest.mark.parametrize("backend", BACKENDS)
def test_works_come_in_order_with_their_cells_filled(backend, paths, start):
    executor = start(backend)
    for _ in range(2):  # epochs, through the same backends
        works = list(executor.run(works_of(paths)))
        # DALI's own resize repeats the edge, where Pillow leaves out what is beyond it
        for work, batch in zip(works, batches(paths), strict=True):
            assert_like(values_of(work), batch, most=30 if backend == "graph" else 3)
    assert executor.count == 2 * len(paths) and not executor.left


def test_without_a_backend_all_is_made_as_noted(paths, start):
    executor = start(None)
    for work, batch in zip(executor.run(works_of(paths)), batches(paths), strict=True):
        assert_like(values_of(work), batch, most=0)
    assert executor.count == 0 and executor.left == {"there is no backend": len(paths)}


@pytest.mark.parametrize("backend", ["dali", "workers", None])
@pytest.mark.parametrize("ahead", [0, 2])
def test_not_more_works_are_read_than_allowed(backend, ahead, paths, start):
    read = []

    def reading():
        for work in works_of(paths):
            read.append(work)
            yield work

    executor = start(backend, ahead=ahead)
    for count, work in enumerate(executor.run(reading()), 1):
        assert len(read) <= count + ahead
        assert_like(values_of(work), batches(paths)[count - 1])
    assert executor.count == (0 if backend is None else len(paths))


def test_a_kind_that_comes_late_gets_a_backend_when_it_has_come_a_few_times(paths, start):
    sizes = [(20, 24)] * 3 + [(16, 16), (20, 24), (16, 16), (16, 16), (16, 16)]
    # one picture of the late kind in a work, beside others of the first one
    sizes = [[size] + [(20, 24)] * (BATCH - 1) for size in sizes]
    executor = start(ahead=1)
    works = (work_of(waits_for(program, *each)) for each in zip(batches(paths), sizes, strict=True))
    for work, batch, each in zip(executor.run(works), batches(paths), sizes, strict=True):
        for value, path, size in zip(values_of(work), batch, each, strict=True):
            assert steps_apart(value, program(path, size), 1 / 255).max() <= 3
    assert executor.left == {"too few pictures are like it": lines.FEW - 1}
    assert executor.count == len(paths) - lines.FEW + 1
    assert len(executor.describe()) == 2


def test_no_more_backends_than_allowed(paths, start, monkeypatch):
    monkeypatch.setattr(lines, "MOST_LINES", 2)
    executor = start("torch", ahead=0)
    for size in ((20, 24), (16, 16), (12, 12), (20, 24)):
        (work,) = executor.run(iter([work_of(waits_for(program, paths[:BATCH], [size] * BATCH))]))
        assert_like(values_of(work), paths[:BATCH], lambda path, size=size: program(path, size))
    assert executor.left == {"there are more than 2 kinds of pictures": BATCH}
    assert executor.count == 3 * BATCH and len(executor.describe()) == 2


def test_a_backend_is_made_for_the_operations_of_the_first_pictures(paths, start):
    first = [T.ColorJitter(0.3), T.RandomApply([T.GaussianBlur(3)]), T.RandomAutocontrast(1)]
    several = [first, [T.RandomSolarize(128, 1), T.GaussianBlur(3)], [T.GaussianBlur(5)], []]

    def colored(path, steps):
        picture = Image.open(path)
        picture.load()
        return T.Compose([T.Resize((20, 24)), *steps, T.ToTensor()])(picture)

    executor = start(ahead=0)
    for batch, steps in zip(batches(paths), several, strict=False):
        torch.manual_seed(0)
        made = made_by(executor, colored, batch, [steps] * BATCH)
        torch.manual_seed(0)
        assert_like(made, batch, lambda path, steps=steps: colored(path, steps), most=12)
    assert executor.left == {"they have other operations than the first ones": BATCH}


@pytest.mark.parametrize("backend", ["torch", "workers", "dali"])
def test_only_the_work_of_a_bad_file_fails_and_backends_go_on(backend, paths, start, tmp_path):
    # its header and its end are right
    data = bytearray(Path(paths[0]).read_bytes())
    half = len(data) // 2
    data[half : half + 4] = b"\xff\xc4\x00\x02"  # a table in the middle of the pixels
    (tmp_path / "bad.jpg").write_bytes(data)
    everything = [*paths[:9], str(tmp_path / "bad.jpg"), *paths[10:]]
    executor = start(backend)
    for epoch in range(2):
        before = executor.count
        works = list(executor.run(works_of(everything)))
        for at, (work, batch) in enumerate(zip(works, batches(everything), strict=True)):
            if at != 2:
                assert_like(values_of(work), batch)
        error, true = works[2].error, None
        try:
            program(everything[9])
        except OSError as raised:
            true = raised
        assert type(error) is type(true) and (true is None or str(error) == str(true))
        # the first time all of its work were made as noted, then it is known
        assert executor.count - before >= len(paths) - (BATCH if epoch == 0 else 1)


def test_a_truncated_file_fails_as_with_the_programs_decoder(paths, start, tmp_path):
    (tmp_path / "short.jpg").write_bytes(Path(paths[0]).read_bytes()[:-300])
    everything = [*paths[:5], str(tmp_path / "short.jpg"), *paths[6:]]

    def top_of(path):
        # what is missing is not in it, and a decoder of regions would not notice
        return read_image(path)[:, :8]

    executor = start()
    works = list(executor.run(works_of(everything, top_of)))
    assert [at for at, work in enumerate(works) if work.error] == [1]
    with pytest.raises(RuntimeError) as true:
        read_image(everything[5])
    assert str(works[1].error) == str(true.value)
    assert executor.left == {"files that do not end as a JPEG or a PNG": 1}


# functions of C are replaced where they are looked up
READERS = {
    "Pillow": lambda path: np.array(Image.open(path)),
    "OpenCV": lambda path: cv2.imread(path),
    "torchvision": lambda path: read_image(path),
}


@pytest.mark.parametrize("reader", READERS)
def test_colors_that_nvjpeg_gets_wrong_are_kept_from_it(
    reader, paths, start, tmp_path, monkeypatch
):
    path, program = str(tmp_path / "stores_rgb.jpg"), READERS[reader]
    Image.open(paths[0]).save(path, keep_rgb=True)
    executor = start()
    monkeypatch.setattr(Executor, "_decodes_on_gpu", True)
    (work,) = executor.run(works_of([path, *paths[1:BATCH]], program))
    assert_like(values_of(work), [path, *paths[1:BATCH]], program)
    why = "nvJPEG takes its red, green and blue for other colors"
    assert executor.left[why] == 1


@pytest.mark.parametrize("backend", ["dali", None])
def test_a_file_that_has_changed_or_gone_fails(backend, paths, start, tmp_path):
    copies = [tmp_path / f"{at}.jpg" for at in range(3 * BATCH)]
    for copy, path in zip(copies, paths, strict=False):
        copy.write_bytes(Path(path).read_bytes())
        os.utime(copy, (0, 0))
    found = [waits_for(program, batch) for batch in batches(list(map(str, copies)))]
    os.utime(copies[1], (1, 1))
    copies[BATCH + 1].unlink()

    works = list(start(backend).run(map(work_of, found)))
    assert isinstance(works[0].error, Changed) and isinstance(works[1].error, FileNotFoundError)
    assert_like(values_of(works[2]), paths[2 * BATCH : 3 * BATCH])


def test_a_file_that_changes_while_it_is_made_fails(paths, start, tmp_path, monkeypatch):
    copy = tmp_path / "copy.jpg"
    copy.write_bytes(Path(paths[0]).read_bytes())
    os.utime(copy, (0, 0))
    executor = start()
    wait_for = lines.BackendLine.wait_for

    def changing(self, part):
        wait_for(self, part)
        os.utime(copy, (1, 1))

    monkeypatch.setattr(lines.BackendLine, "wait_for", changing)
    (work,) = executor.run(works_of([str(copy), *paths[1:BATCH]]))
    assert isinstance(work.error, Changed)


def test_an_error_of_the_program_comes_after_the_works_before_it(paths, start):
    def failing():
        yield from works_of(paths[: 3 * BATCH])
        raise KeyError("the program's own")

    run = start().run(failing())
    for batch in batches(paths[: 3 * BATCH]):
        assert_like(values_of(next(run)), batch)
    with pytest.raises(KeyError, match="own"):
        next(run)


@pytest.mark.parametrize("backend", ["dali", "workers", None])
def test_what_was_left_in_the_middle_is_forgotten(backend, paths, start):
    executor = start(backend)
    run = executor.run(works_of(paths))
    next(run)
    run.close()
    for work, batch in zip(executor.run(works_of(paths[::-1])), batches(paths[::-1]), strict=True):
        assert_like(values_of(work), batch)


@pytest.mark.parametrize("backend", ["dali", "workers", None])
def test_close_ends_all_threads(backend, paths):
    before = set(threading.enumerate())
    executor = Executor(BACKENDS.get(backend), CPU, BATCH)
    run = executor.run(works_of(paths))
    next(run)
    executor.close()
    executor.close()
    end = time.monotonic() + 10
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left


# Backends that fail


class Failing:
    """Makes black pictures, and fails as it is told.

    Attributes:
        fails: numbers of planned batches, of all backends, at which one fails.
        made: how many backends there were.
    """

    fails: ClassVar[set[int]] = set()
    made = open = batches = 0

    def __init__(self, job: Any, config: Any):
        if self.refuses(job):
            raise ConfigError("it cannot do that")
        type(self).made += 1
        type(self).open += 1
        self.is_closed = False

    def refuses(self, job: Any) -> bool:
        return False

    def stream(self, planned):
        for each in planned:
            type(self).batches += 1
            if self.batches in self.fails:
                raise RuntimeError(
                    "the backend's own fault\nCurrent pipeline object is no longer valid."
                )
            yield Decoded(each, (torch.zeros(len(each), 3, *each.shape),))

    def describe(self) -> Description:
        return Description("it fails")

    def close(self) -> None:
        type(self).open -= not self.is_closed
        self.is_closed = True


@pytest.fixture
def failing(monkeypatch):
    kind = type("Failing", (Failing,), {"fails": set()})
    for module in (lines, executor_module):
        monkeypatch.setattr(module, "load_backend", lambda config: kind)
    return kind


def is_black(values):
    return all(not value.any() for value in values)


def test_a_batch_at_which_a_backend_fails_is_made_as_noted(failing, paths, start, caplog):
    failing.fails = {3}
    executor = start("torch", ahead=2)
    works = list(executor.run(works_of(paths)))
    assert [is_black(values_of(work)) for work in works] == [at != 2 for at in range(8)]
    assert_like(values_of(works[2]), paths[2 * BATCH : 3 * BATCH], most=0)
    assert failing.made == 2 and failing.open == 1
    assert executor.left == {"a backend failed": BATCH} and executor.count == 7 * BATCH
    (record,) = caplog.records
    assert record.getMessage().endswith("RuntimeError: the backend's own fault")

    # nobody knows which file it was
    list(executor.run(works_of(paths)))
    assert executor.left["a backend could not decode it"] == BATCH and failing.made == 2


def test_a_backend_that_fails_again_and_again_is_given_up(failing, paths, start):
    failing.fails = set(range(2, 99))
    executor = start("torch", ahead=2)
    works = list(executor.run(works_of(paths, bytes_of)))
    assert [is_black(values_of(work)) for work in works] == [True] + [False] * 7
    assert failing.made == 1 + lines.MOST_FAILURES - 1 and failing.open == 0
    assert executor.count == BATCH and executor.left.total() == 7 * BATCH


def test_options_that_no_kind_gets_along_with_are_refused(failing, paths, start):
    failing.refuses = lambda self, job: True
    with pytest.raises(ConfigError, match="cannot do that"):
        list(start("torch").run(works_of(paths, bytes_of)))


def test_a_kind_that_a_backend_refuses_is_made_as_noted(failing, paths, start):
    failing.refuses = lambda self, job: job.transform.shape == (16, 16)
    executor = start("torch")
    (first,) = executor.run(works_of(paths[:BATCH], bytes_of))
    other = lambda path: bytes_of(path, (16, 16))  # noqa: E731
    (second,) = executor.run(works_of(paths[:BATCH], other))
    assert is_black(values_of(first))
    assert_like(values_of(second), paths[:BATCH], other, most=0)
    assert executor.left == {"it cannot do that": BATCH}


def test_a_kind_can_be_refused_from_outside(failing, paths, start):
    executor = start("torch")
    (work,) = executor.run(works_of(paths[:BATCH], bytes_of))
    executor.refuse(work.parts[0].line, "it is black")
    (again,) = executor.run(works_of(paths[:BATCH], bytes_of))
    assert_like(values_of(again), paths[:BATCH], bytes_of, most=0)
    assert executor.left == {"it is black": BATCH} and failing.open == 0


# What the training process may do


def test_a_default_dtype_of_the_training_process_stays_as_it_is(paths, start):
    executor = start(None)
    works = works_of(paths)
    first = next(works)
    torch.set_default_dtype(torch.float64)
    try:
        (work,) = executor.run(iter([first]))
        values = values_of(work)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert_like(values, paths[:BATCH], most=0)


@pytest.mark.parametrize("backend", ["dali", "torch", None])
def test_modes_of_the_training_process_do_not_matter(backend, paths, start):
    works = list(works_of(paths))
    executor = start(backend, ahead=1)
    with torch.device("meta"), torch.inference_mode(), torch.autocast("cpu"):
        values = [values_of(work) for work in executor.run(iter(works))]
    for each, batch in zip(values, batches(paths), strict=True):
        assert not any(value.is_inference() for value in each)
        assert_like(each, batch)


def test_a_plan_that_fails_is_none(paths, start, monkeypatch):
    def plan(row, *args):
        raise IndexError("an argument that nobody has thought of")

    broken = dataclasses.replace(STEPS["resize"], plan=plan)
    monkeypatch.setitem(STEPS, "resize", broken)
    executor = start()
    (work,) = executor.run(works_of(paths[:BATCH], bytes_of))
    assert_like(values_of(work), paths[:BATCH], bytes_of, most=0)
    (why,) = executor.left
    assert why == "resize with such arguments (IndexError: an argument that nobody has thought of)"


def test_stacked_pictures_and_pairs_of_one_sample_fill_their_cells(paths, start):
    def stacked(batch):
        pictures = torch.stack([program(path) for path in batch])
        return pictures, [program(path, (16, 16)) for path in batch], pictures[1:3]

    executor = start()
    works = (work_of(waits_for(stacked, [batch])) for batch in batches(paths))
    for work, batch in zip(executor.run(works), batches(paths), strict=True):
        ((pictures, others, part),) = values_of(work)
        assert pictures.shape == (BATCH, 3, 24, 20) and pictures.is_contiguous()
        assert_like(pictures, batch)
        assert_like(others, batch, lambda path: program(path, (16, 16)))
        assert part.data_ptr() == pictures[1].data_ptr()  # it shares their memory
    assert executor.count == 2 * len(paths)
