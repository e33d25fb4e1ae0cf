"""Texts, masks and columns: shards keep them, folders refuse them, and nothing of them is lost
without a word.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from odd_inputs import photo
from PIL import Image
from prepared import config
from test_prepare_shards import samples

import dali_pipes as dp
from dali_pipes import ConfigError
from dali_pipes.data.config import DataConfig
from dali_pipes.data.objects import Targets
from dali_pipes.errors import PreparationError
from dali_pipes.tools.preparation.run import prepare

TEXTS = ["plain", "", "ü\n", "two\r\n", "\r", "a\n\n"]
BACK = Targets(text=".txt", mask=".mask.png")


def table(folder, extension="jpg"):
    """Six images with masks, of which each half has a value of its own, and a row of a table
    each.
    """
    for number in range(6):
        photo(60, 80).save(folder / f"{number}.{extension}")
        mask = np.full((60, 80), number, np.uint8)
        mask[:, 40:] = 200
        Image.fromarray(mask).save(folder / f"m{number}.png")
    columns = {
        "path": [f"{number}.{extension}" for number in range(6)],
        "label": [number // 3 for number in range(6)],
        "caption": TEXTS,
        "mask": [f"m{number}.png" for number in range(6)],
        "age": [number / 8 for number in range(6)],
        "pair": [[number, 1] for number in range(6)],
        "origin": [f"ö{number}" for number in range(6)],
    }
    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


def packed(folder, out, extension="jpg", **options):
    data = DataConfig(
        train=str(table(folder, extension)), targets=Targets(text="caption", mask="mask")
    )
    return run(folder, out, data, **options)


def run(folder, out, data, **options):
    made = config(folder, out, **{"to": "shards"} | options)
    made.data = data
    prepare(made)
    return out / "train"


@pytest.mark.parametrize("extension", ["jpg", "png"])
def test_shards_keep_texts_masks_and_columns(tmp_path, extension):
    train = packed(tmp_path, tmp_path / "out", extension)
    for number, sample in enumerate(samples(train).values()):
        assert [*sample] == [extension, "cls", "txt", "json", "mask.png"]
        assert sample["mask.png"] == (tmp_path / f"m{number}.png").read_bytes()
        assert json.loads(sample["json"]) == {
            "age": number / 8,
            "pair": [number, 1],
            "origin": f"ö{number}",
        }
    shards = dp.Manifest.open(train, targets=BACK, strict=True, progress=False)
    assert shards.take_texts("text", np.arange(6)) == TEXTS and shards.labels.tolist() == [
        0,
        0,
        0,
        1,
        1,
        1,
    ]
    plain = dp.Manifest.open(train, strict=True, progress=False)
    assert len(plain) == 6 and not plain.omissions


@pytest.mark.few
@pytest.mark.parametrize("exif", ["keep", "apply"])
@pytest.mark.parametrize("mode", ["L", "P", "1", "I;16"])
def test_masks_are_resized_and_turned_with_their_images(tmp_path, exif, mode):
    source = table(tmp_path)
    tag = Image.Exif()
    tag[0x112] = 6
    photo(60, 80).save(tmp_path / "0.jpg", exif=tag)
    high = {"1": 1, "I;16": 60000}.get(mode, 200)
    values = np.zeros((60, 80), np.uint16)
    values[:30, :40] = high
    made = (
        Image.fromarray(values)
        if mode == "I;16"
        else Image.fromarray(values.astype(np.uint8) * (255 if mode == "1" else 1))
    )
    made = made.convert("1") if mode == "1" else made
    if mode == "P":
        made.putpalette([5] * 768)
    made.save(tmp_path / "m0.png")
    data = DataConfig(train=str(source), targets=Targets(text="caption", mask="mask"))
    run(tmp_path, tmp_path / "out", data, resize=30, exif=exif)
    shards = dp.Manifest.open(tmp_path / "out/train", targets=BACK, verify="full", progress=False)
    # nothing is left out; the made-up values are no classes, and two photos are alike
    assert all(each.unit == "doubt" for each in shards.omissions) and len(shards) == 6
    transform = dp.EvalTransform(size=(40, 30) if exif == "apply" else (30, 40), resize=30)
    with dp.build_loader(
        shards, dp.TorchConfig(num_workers=0), transform=transform, batch_size=1, device="cpu"
    ) as loader:
        mask = next(iter(loader))["mask"][0].numpy()
    quarter = np.s_[:20, 15:] if exif == "apply" else np.s_[:15, :20]
    assert (mask[quarter] == high).all() and (mask == high).mean() == 0.25


def test_masks_have_no_other_limit_on_pixels_than_their_images(tmp_path, monkeypatch):
    # of Pillow, which refuses twice as many; an image has 4,800
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1_000)
    train = packed(tmp_path, tmp_path / "out", quality=90)
    assert len(samples(train)) == 6
    assert len(samples(packed(tmp_path, tmp_path / "small", resize=30))) == 6


def test_folders_refuse_what_they_cannot_keep_by_name(tmp_path):
    with pytest.raises(
        ConfigError,
        match=r"cannot keep text, mask, age, pair, origin; .*drop=\[text,mask,age,pair,origin\]",
    ):
        packed(tmp_path, tmp_path / "out", to="folder", quality=90)
    assert not (tmp_path / "out").exists()
    train = packed(
        tmp_path,
        tmp_path / "out",
        to="folder",
        quality=90,
        drop=["text", "mask", "age", "pair", "origin"],
    )
    assert len(dp.Manifest.scan(train, progress=False)) == 6


def test_what_is_dropped_is_named_and_another_drop_is_another_output(tmp_path):
    train = packed(tmp_path, tmp_path / "out", drop=["mask", "age"])
    assert {tuple(sample) for sample in samples(train).values()} == {("jpg", "cls", "txt", "json")}
    assert json.loads(samples(train)["000000003"]["json"]) == {"pair": [3, 1], "origin": "ö3"}
    with pytest.raises(
        PreparationError,
        match=r"started with other options: beside was \['origin', 'pair', 'text'\]",
    ):
        packed(tmp_path, tmp_path / "out")
    with pytest.raises(
        ConfigError,
        match=r"drop names caption, and besides labels .* has text, mask, age, pair, origin",
    ):
        packed(tmp_path, tmp_path / "other", drop=["caption"])


def test_the_output_says_how_to_read_it_all_again(tmp_path, capsys):
    data = DataConfig(
        train=str(table(tmp_path)),
        targets=Targets(text="caption", mask="mask", mask_values={200: 7}),
    )
    run(tmp_path, tmp_path / "out", data)
    said = capsys.readouterr().out
    assert (
        "data.targets.text=.txt data.targets.mask=.mask.png 'data.targets.mask_values={200: 7}'"
    ) in said
    assert "(age, pair, origin), which a scan of shards does not read" in said


def test_a_mask_that_has_become_bad_leaves_out_its_image_with_the_reason(tmp_path, capsys):
    source = table(tmp_path)
    data = DataConfig(train=str(source), targets=Targets(text="caption", mask="mask"))
    (tmp_path / "m2.png").write_bytes((tmp_path / "m2.png").read_bytes()[:60])
    run(tmp_path, tmp_path / "out", data)
    assert (
        "2.jpg: its mask" in capsys.readouterr().out and len(samples(tmp_path / "out/train")) == 5
    )


def test_a_text_that_no_scan_reads_is_refused(tmp_path):
    (tmp_path / "images").mkdir()
    photo(60, 80).save(tmp_path / "images/0.jpg")
    (tmp_path / "images/t.csv").write_text("path,label,caption\n0.jpg,0," + "x" * 2**20 + "y\n")
    data = DataConfig(train=str(tmp_path / "images/t.csv"), targets=Targets(text="caption"))
    with pytest.raises(PreparationError, match="its text has 1,048,577 bytes"):
        run(tmp_path, tmp_path / "out", data)
