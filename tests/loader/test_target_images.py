"""What can go wrong with further images while a loader runs, and what is refused."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import dali_pipes as dp

HEIGHT, WIDTH = 40, 60
TRANSFORM = dp.TrainTransform(
    size=(24, 32), scale=(0.5, 1), target_images={"depth": {"channels": 1, "scale": 1}}
)
CONFIGS = {
    "torch": dp.TorchConfig(num_workers=1),
    "dali_cpu": dp.DaliConfig(device="cpu", num_threads=2),
}
by_both = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture
def deep(tmp_path):
    """Twelve images with a depth map of 16 bits each, full of 1,000 times its number."""
    rows = ["path,label,depth_path"]
    for number in range(12):
        pixels = np.full((HEIGHT, WIDTH, 3), 20 * number, np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{number:02d}.jpg")
        depth = np.full((HEIGHT, WIDTH), 1000 * number, np.uint16)
        Image.fromarray(depth).save(tmp_path / f"depth_{number:02d}.png")
        rows.append(f"{number:02d}.jpg,0,depth_{number:02d}.png")
    (tmp_path / "pairs.csv").write_text("\n".join(rows))
    return scan(tmp_path)


def scan(folder, **options):
    targets = dp.Targets(images={"depth": "depth_path"})
    return dp.Manifest.from_table(folder / "pairs.csv", targets=targets, progress=False, **options)


def build(manifest, name="dali_cpu", **options):
    options = {"transform": TRANSFORM, "last_batch": "partial", "device": "cpu"} | options
    return dp.build_loader(manifest, CONFIGS[name], **({"batch_size": 4} | options))


def remove(file):
    file.unlink()


def cut(file):
    file.write_bytes(file.read_bytes()[:40])


def cut_pixels(file):
    file.write_bytes(file.read_bytes()[:-30])


def as_gif(file):
    Image.new("L", (WIDTH, HEIGHT)).save(file, "GIF")


def smaller(file):
    Image.new("I;16", (WIDTH - 1, HEIGHT)).save(file)


def colored(file):
    Image.new("RGB", (WIDTH, HEIGHT)).save(file)


def turned(file):
    exif = Image.Exif()
    exif[0x0112] = 3
    Image.new("L", (WIDTH, HEIGHT)).save(file, exif=exif)


FAULTS = {
    remove: "no such file",
    cut: "not an image, or broken",
    cut_pixels: "broken",
    as_gif: "GIF format; save it as PNG, JPEG or TIFF",
    smaller: f"{WIDTH - 1} × {HEIGHT}, and the image is {WIDTH} × {HEIGHT}; make them equal",
    colored: "colors; set channels to 3, or save it as gray",
    turned: "its EXIF orientation is 3, and its image is not turned so",
}


@by_both
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_target_that_has_become_bad_is_named_and_costs_nothing_else(deep, tmp_path, name, fault):
    fault(tmp_path / "depth_05.png")
    delivered = []
    with (
        build(deep, name, shuffle=False) as loader,
        pytest.raises(dp.BadSampleError, match=FAULTS[fault]) as caught,
    ):
        for batch in loader:
            delivered += batch.ids.tolist()
    assert delivered == [0, 1, 2, 3]
    ((sample_id, path, why),) = caught.value.bad_samples
    assert sample_id == 5 and path.endswith("05.jpg") and "\n" not in why
    assert why.startswith("its target depth, ") and "depth_05.png" in why


@by_both
def test_the_substitute_brings_its_own_target(deep, tmp_path, name):
    remove(tmp_path / "depth_05.png")
    options = {"on_bad_sample": "substitute", "max_bad_fraction": 0.2}
    with build(deep, name, shuffle=False, **options) as loader:
        batches = list(loader)
        assert [sample_id for sample_id, _, _ in loader.bad_samples] == [5]
    assert [batch.ids.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 6, 6, 7], [8, 9, 10, 11]]
    for batch in batches:
        values = batch["depth"].flatten(1)
        assert (values == 1000 * batch.ids[:, None]).all()


def test_resuming_on_three_ranks_delivers_the_same_targets(deep):
    with build(deep, batch_size=6) as whole:
        stream = iter(whole)
        next(stream)
        state, expected = json.loads(json.dumps(whole.state_dict())), next(stream)
    found = []
    for index in range(3):
        with build(deep, "torch", batch_size=2, rank=dp.Rank(index, 3)) as rank:
            rank.load_state_dict(state)
            found.append(next(iter(rank)))
    assert torch.equal(torch.cat([batch["depth"] for batch in found]), expected["depth"])
    assert torch.equal(torch.cat([batch.ids for batch in found]), expected.ids)


def test_other_options_of_targets_are_another_state(deep):
    with build(deep) as loader:
        state = loader.state_dict()
    other = dp.TrainTransform(
        size=(24, 32), scale=(0.5, 1), target_images={"depth": {"channels": 1}}
    )
    with (
        build(deep, transform=other) as loader,
        pytest.raises(dp.ConfigError, match=r"have changed: transform\.target_images"),
    ):
        loader.load_state_dict(state)


def test_batches_have_targets_as_fields_that_move(deep):
    with build(deep) as loader:
        batch = next(iter(loader))
    assert "depth" in batch and "targets depth" in repr(batch)
    assert batch["depth"].shape == (4, 1, 24, 32) and batch["depth"].is_contiguous()
    assert batch.to("meta")["depth"].device.type == "meta"


REFUSED = {
    "channels": (
        {"target_images": {"depth": {}}},
        "target_images: depth: .*depth_00.png: gray of more than 8 bits; set channels to 1",
    ),
    "dtype": (
        {"target_images": {"depth": {"channels": 1, "dtype": "uint8"}}},
        "gray of more than 8 bits; set dtype to fp32",
    ),
    "name": (
        {"target_images": {"dept": {}}},
        "target_images has 'dept', and the further images of this manifest are: depth",
    ),
    "before": (
        {"before": [{"name": "RandomRotation", "degrees": 3}]},
        "before moves the pixels of an image, but not its depth, which this manifest has",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_when_the_loader_is_built(deep, case):
    options, why = REFUSED[case]
    options = {"target_images": TRANSFORM.target_images} | options
    with pytest.raises(dp.ConfigError, match=why):
        build(deep, transform=dp.TrainTransform(size=24, **options))


@pytest.mark.parametrize("mixing", [dp.MixUp, dp.CutMix])
def test_mixing_is_refused(deep, mixing):
    with pytest.raises(dp.ConfigError, match="mixes images and labels, not depth; leave it out"):
        build(deep, batch_transform=mixing(num_classes=1))


def test_a_function_of_the_batch_may_mix_them(deep):
    def subtract(batch, draws):
        batch.targets["depth"] = batch["depth"] - 500
        return batch

    with build(deep, batch_transform=subtract) as loader:
        assert all((batch["depth"] % 1000 == 500).all() for batch in loader)


@by_both
def test_what_half_precision_does_not_hold_is_named(deep, tmp_path, name):
    """Millimeters of more than 65 m would be infinite."""
    Image.fromarray(np.full((HEIGHT, WIDTH), 65530, np.uint16)).save(tmp_path / "depth_05.png")
    half = {"channels": 1, "scale": 1, "dtype": "fp16"}
    transform = dp.TrainTransform(size=24, target_images={"depth": half})
    why = "depth_05.png: a value becomes 65,530, and fp16 ends at 65,504; set dtype to fp32 or bf16"
    with build(deep, name, transform=transform) as loader, pytest.raises(dp.BadSampleError) as bad:
        list(loader)
    ((sample_id, _, text),) = bad.value.bad_samples
    assert sample_id == 5 and why in text
    for more in ({"scale": 0.001}, {"dtype": "bf16"}, {"scale": None}):
        transform = dp.TrainTransform(size=24, target_images={"depth": half | more})
        with build(deep, name, transform=transform) as loader:
            assert all(batch["depth"].isfinite().all() for batch in loader)
