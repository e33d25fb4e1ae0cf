"""A dry run of a collate function draws the random numbers that it draws, and makes no pixels."""

import io
import random

import numpy as np
import pytest
import torch
import torchvision.transforms.functional as F
from lazy_programs import seed_globals
from PIL import Image
from programs.twice import encoded
from torch.utils.data import default_collate
from torchvision import tv_tensors
from torchvision.transforms import v2

from dali_pipes.adapters.lazy.dry_run import draw_as
from dali_pipes.adapters.lazy.patching import patched
from dali_pipes.adapters.lazy.random_numbers import read_states
from dali_pipes.adapters.lazy.state import PROCESS, STATE, waiting
from dali_pipes.adapters.lazy.tensors import lazy_of

COUNT = 4
FILES = [encoded(seed, 12, 10) for seed in range(COUNT)]


def picture(at):
    return Image.open(io.BytesIO(FILES[at])).convert("RGB")


def tensor(at):
    return F.to_tensor(picture(at))


def array(at):
    return np.array(picture(at)).transpose(2, 0, 1)


def dry_run(collate, item=tensor, number=0):
    """Whether `draw_as` has drawn; it has drawn what `collate` draws, or nothing."""
    seed_globals(number)
    before = read_states()
    collate([(item(at), at) for at in range(COUNT)])
    after = read_states()
    with patched(), waiting(True):
        PROCESS.seen.clear()
        samples = [(item(at), at) for at in range(COUNT)]
        seed_globals(number)
        drawn = draw_as(collate, samples)
        assert read_states() == (after if drawn else before)
        assert not PROCESS.seen and PROCESS.failed is None and not STATE.is_dry
    return drawn


# Functions that mix

MIXUP, CUTMIX = v2.MixUp(num_classes=9), v2.CutMix(num_classes=9)


def mix_by_hand(samples):
    images, labels = default_collate(samples)
    share, order = np.random.beta(1, 1), torch.randperm(len(images))
    return share * images + (1 - share) * images[order], labels, labels[order]


def cut_by_hand(samples):
    images, labels = default_collate(samples)
    top, left = random.randrange(6), int(torch.randint(5, ()))
    images[:, :, top : top + 3, left : left + 3] = images.flip(0)[
        :, :, top : top + 3, left : left + 3
    ]
    return images, labels


def stack_pictures(samples):
    images = torch.stack(
        [F.normalize(F.to_tensor(each), [0.5] * 3, [0.5] * 3) for each, _ in samples]
    )
    return images * torch.rand(len(images), 1, 1, 1), random.random()


def pad_by_hand(samples):
    out = torch.zeros(len(samples), 3, 20, 20)
    for at, (image, _) in enumerate(samples):
        out[at, :, : image.shape[1], : image.shape[2]].copy_(image)
    return out.mul_(torch.rand(1)), np.random.permutation(3)


def drop(samples):
    images = default_collate(samples)[0]
    noise = torch.rand_like(images) + torch.randn_like(images[:, :1])
    kept = torch.empty_like(images).bernoulli_(0.7) * torch.bernoulli(images)
    changed = images.clone().uniform_().add_(images.clone().normal_(0, 1))
    chosen = images[torch.rand(len(images)) > 0.5].shape if noise.mean() > 9 else None
    return torch.nn.functional.dropout(kept * changed, 0.3), chosen, torch.rand(1)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize(
    ("collate", "item"),
    [
        (default_collate, tensor),
        (default_collate, array),
        (default_collate, lambda at: tv_tensors.Image(picture(at))),
        (lambda samples: MIXUP(*default_collate(samples)), tensor),
        (lambda samples: CUTMIX(*default_collate(samples)), tensor),
        (lambda samples: v2.RandomChoice([MIXUP, CUTMIX])(*default_collate(samples)), tensor),
        (mix_by_hand, tensor),
        (cut_by_hand, tensor),
        (stack_pictures, picture),
        (pad_by_hand, tensor),
        (drop, tensor),
    ],
)
def test_what_mixes_draws_the_same(collate, item, number):
    assert dry_run(collate, item, number)


@pytest.mark.parametrize("mode", ["batch", "pair", "elem", "half"])
@pytest.mark.parametrize("item", [array, lambda at: F.pil_to_tensor(picture(at))])
def test_what_timm_mixes_draws_the_same(mode, item):
    mixup = pytest.importorskip("timm.data.mixup")
    options = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "num_classes": 9, "mode": mode}
    for number in range(3):
        assert dry_run(mixup.FastCollateMixup(**options), item, number)
        if mode != "half":
            later = mixup.Mixup(**options)
            assert dry_run(lambda samples: later(*default_collate(samples)), tensor, number)  # noqa: B023


# Functions that look


def look_by_item(images):
    return images.mean().item() > 0.5


def look_by_branch(images):
    return bool((images > 0.5).any())


def look_by_numpy(images):
    return images.numpy().max() > 0.5


def look_by_mask(images):
    return images[images > 0.5].sum() > 1


def look_by_print(images):
    return "0.5" in str(images)


def look_by_poisson(images):
    return torch.poisson(images)


def look_at_a_copy(images):
    out = torch.zeros(images.shape)
    out += images
    return float(out.max()) > 0.5


def look_at_a_copy_by_numpy(images):
    out = torch.zeros(images.shape)
    out[:2] = images[:2]
    return out[0].numpy().max() > 0.5


def look_at_an_array(images):
    out = np.zeros(images.shape)
    out[:] = images
    return out.max() > 0.5


def fail(images):
    raise ValueError


@pytest.mark.parametrize(
    "look",
    [
        *(look_by_item, look_by_branch, look_by_numpy, look_by_mask, look_by_print),
        *(look_by_poisson, look_at_a_copy, look_at_a_copy_by_numpy, look_at_an_array),
    ],
)
@pytest.mark.parametrize("catches", [False, True])
def test_what_looks_at_values_is_said_and_the_states_are_put_back(look, catches):
    def collate(samples):
        images, draws = (
            default_collate(samples)[0],
            [random.random(), np.random.rand(), torch.rand(2)],
        )
        try:
            look(images)
        except Exception:
            if not catches:
                raise
        return images, draws, torch.rand(1)

    assert not dry_run(collate)


def test_what_fails_is_no_dry_run():
    seed_globals(0)
    states = read_states()
    with waiting(True):
        assert not draw_as(lambda samples: fail(torch.rand(3)), [])
    assert read_states() == states and not STATE.is_dry


def test_samples_stay_as_they_are():
    def collate(samples):
        for image, label, extra in samples:
            image[:, :3] = 0
            image.mul_(2)
            label.add_(1)
            extra.append(torch.rand(1))
        return torch.stack([image for image, _, _ in samples])

    with patched(), waiting(True):
        samples = [(tensor(at), torch.tensor(at), []) for at in range(COUNT)]
        assert draw_as(collate, samples)
        assert [label.item() for _, label, _ in samples] == list(range(COUNT))
        assert not any(extra for _, _, extra in samples)
        assert all(lazy_of(image).waits for image, _, _ in samples)
        images = [image + 0 for image, _, _ in samples]
        found = [lazy_of(image).true() for image in images]
    assert all(one.equal(tensor(at)) for at, one in enumerate(found))
