"""Accelerate's own Accelerator with our loaders."""

from functools import partial

import pytest
import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from accelerate.utils import DataLoaderConfiguration
from adapter_ranks import example, rows, start
from ranks import finish, kill_after

import dali_pipes as dp
from dali_pipes.adapters.accelerate import AccelerateLoader

pytestmark = pytest.mark.usefixtures("alone")
STEPS, EPOCHS = 4, 3  # of 37 images in batches of 10
TRANSFORM = dp.EvalTransform(resize=8, size=8)


@pytest.fixture
def build(thumbnails):
    options = {"transform": TRANSFORM, "batch_size": 10, "seed": 3, "shuffle": True}
    return partial(dp.build_loader, thumbnails, dp.TorchConfig(num_workers=0), **options)


def test_accumulate_synchronizes_on_the_last_batch(build):
    """Of 3 batches in steps of 2."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    with build(last_batch="drop") as loader:
        model, mine = accelerator.prepare(torch.nn.Linear(1, 1), AccelerateLoader(loader))
        synchronized = []
        for _ in range(2):
            for _ in mine:
                with accelerator.accumulate(model):
                    synchronized.append(accelerator.sync_gradients)
    assert synchronized == [False, True, True] * 2
    assert not accelerator.gradient_state.in_dataloader


def test_left_early_and_nested(build):
    accelerator = Accelerator(cpu=True)
    with build() as outer, build() as inner:
        training, evaluation = AccelerateLoader(outer), AccelerateLoader(inner)
        for _ in training:
            assert sum(len(each) for each in evaluation) == 37
            assert accelerator.gradient_state.active_dataloader is training
            assert not accelerator.gradient_state.end_of_dataloader
            break
        assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("last_batch", ["partial", "pad", "even"])
def test_metrics_hold_each_image_once(build, last_batch):
    accelerator = Accelerator(cpu=True)
    accelerator.gather = lambda data: data.clone()
    with build(last_batch=last_batch, shuffle=False) as loader:
        ids = [accelerator.gather_for_metrics(batch.ids) for batch in AccelerateLoader(loader)]
    assert torch.cat(ids).tolist() == list(range(37))


@pytest.mark.parametrize("after", [1, 3, STEPS, STEPS + 2])
def test_saved_and_loaded(build, tmp_path, after):
    def run(loader, batches=None):
        found = []
        while loader.epoch < EPOCHS:
            for batch in loader:
                found.append((batch.ids.tolist(), batch.images.double().sum().item()))
                if len(found) == batches:
                    return found
        return found

    with build() as loader:
        whole = run(AccelerateLoader(loader))
    accelerator = Accelerator(cpu=True)
    with build() as loader:
        mine = AccelerateLoader(loader)
        accelerator.register_for_checkpointing(mine)
        done = run(mine, after)
        accelerator.save_state(tmp_path)
    with build() as loader:
        mine = AccelerateLoader(loader)
        accelerator._custom_objects = [mine]
        accelerator.load_state(tmp_path)
        assert done + run(mine) == whole


@pytest.mark.slow
@pytest.mark.parametrize("library", ["accelerate", "ddp"])
def test_two_processes_killed_and_resumed(library, thumbnails, build, tmp_path):
    """By SIGKILL in mid-epoch; what both trained together is what one process trains with the
    batches of both.
    """
    thumbnails.save(tmp_path / "m.parquet")
    options = [library, tmp_path / "m.parquet", tmp_path, EPOCHS]
    process = start("training_ranks", *options, 0.3, ranks=2)
    kill_after(process, lambda: len(rows(tmp_path, 0)) > STEPS + 1)
    finish(start("training_ranks", *options, 0, ranks=2))
    steps = [{row[0]: row[1:] for row in rows(tmp_path, rank)} for rank in (0, 1)]
    # at most the step that was killed is done again
    assert len(rows(tmp_path, 0)) <= STEPS * EPOCHS + 1
    with build(last_batch="pad") as loader:
        expected = [batch.ids.tolist() for _ in range(EPOCHS) for batch in loader]
    assert [steps[0][step][0] + steps[1][step][0] for step in range(STEPS * EPOCHS)] == expected
    # the models are one
    assert steps[0][STEPS * EPOCHS - 1][1] == pytest.approx(steps[1][STEPS * EPOCHS - 1][1])
    synchronized = [library == "ddp" or step % 2 == 1 for step in steps[0]]
    assert [row[2] for row in steps[0].values()] == synchronized


@pytest.mark.slow
@pytest.mark.parametrize("library", ["accelerate", "ddp"])
def test_the_example(library, image_folder, tmp_path):
    main = example(library)
    options = {"size": 32, "batch_size": 8}
    assert main(image_folder, tmp_path, epochs=1, **options) == 4
    assert main(image_folder, tmp_path, epochs=2, **options) == 8


@pytest.mark.parametrize("adapt", [AccelerateLoader, lambda loader: loader], ids=["ours", "as is"])
@pytest.mark.parametrize("use", [lambda loader: skip_first_batches(loader, 2), prepare_data_loader])
def test_what_needs_a_sampler_ends_by_its_name(build, adapt, use):
    """A DataLoader made of ours would ask images one by one; going on in mid-epoch is
    load_state_dict's.
    """
    with build() as loader, pytest.raises(AttributeError, match=r"'Loader' .* '(batch_)?sampler'"):
        use(adapt(loader))


def test_neither_options_nor_single_images(build):
    """As with the loader itself: what is set would hide that loader's and be of no effect."""
    with build() as loader:
        mine = AccelerateLoader(loader)
        with pytest.raises(AttributeError, match="batch_size cannot be set on a loader"):
            mine.batch_size = 4
        with pytest.raises(TypeError, match="not subscriptable"):
            next(iter(torch.utils.data.DataLoader(mine)))


@pytest.mark.parametrize(
    "option", ["dispatch_batches", "split_batches", "even_batches", "use_stateful_dataloader"]
)
def test_what_accelerate_does_with_a_dataloaders_batches_it_leaves_ours(build, option):
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**{option: True}))
    with build() as loader, build() as other:
        first, second = accelerator.prepare([AccelerateLoader(loader), AccelerateLoader(other)])
        assert [batch.ids.tolist() for batch in first] == [batch.ids.tolist() for batch in second]
        assert accelerator.prepare(first) is first and len(first) == STEPS and first.epoch == 1
