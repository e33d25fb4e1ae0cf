"""Images that are trained on and evaluated on are found, named, and refused by `strict`."""

import logging

import numpy as np
import pytest
from every_kind import OF_NAMES, tar, write_pictures

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.data.sets.common import find_common
from dali_pipes.training.config import TrainConfig
from dali_pipes.training.data import left_out, open_both

SMALL = dp.TrainTransform(size=8), dp.EvalTransform(size=8, resize=8)


@pytest.fixture
def folder(tmp_path):
    for name in "ab":
        write_pictures(tmp_path / "all" / name, 4)
    rows = [f"all/{name}/{number}.png,{name}\n" for name in "ab" for number in range(4)]
    (tmp_path / "train.csv").write_text("path,label\n" + "".join(rows))
    (tmp_path / "val.csv").write_text("path,label\n" + rows[0] + rows[5])
    return tmp_path


def opened(place, **options):
    return dp.Manifest.open(place, progress=False, **options)


def common(train, val):
    found = find_common(train, val)
    return found and (found.number, found.names)


def test_the_same_files_by_another_root(folder):
    train, val = opened(folder / "train.csv"), opened(folder / "val.csv")
    assert common(train, val) == (2, ["all/a/0.png", "all/b/1.png"])
    images = opened(folder / "all")
    assert common(images, val) == (2, ["all/a/0.png", "all/b/1.png"])
    assert common(val, images) == (2, ["a/0.png", "b/1.png"])
    assert common(images, images)[0] == 8


def test_others_are_not_in_common(folder, tmp_path):
    parts = opened(folder / "all").split({"a": 0.5, "b": 0.5})
    assert common(parts["a"], parts["b"]) is None
    write_pictures(folder / "all2" / "a", 2)
    assert common(opened(folder / "all"), opened(folder / "all2")) is None
    assert common(opened(folder / "all/a", with_labels=False), opened(folder / "all2")) is None


def test_members_of_a_shard(tmp_path):
    manifest = tar(tmp_path, [0, 1, 0, 1])()
    assert common(manifest, manifest.subset(np.array([1, 3])))[0] == 2
    assert common(manifest.subset(np.array([0, 2])), manifest.subset(np.array([1, 3]))) is None


@pytest.mark.parametrize("kind", OF_NAMES)
def test_the_same_bytes_in_another_place(kind, folder, tmp_path):
    """Where `verify="full"` has read them; else nobody knows."""
    labels = [0, 1, 0, 0, 1, 0]  # two more pictures than `all` has
    read = OF_NAMES[kind](tmp_path / "other", labels)
    if kind == "saved":  # with what was read then
        full = opened(tmp_path / "other/t.csv", verify="full")
        full.save(tmp_path / "other/full.arrow")
        by_bytes = opened(tmp_path / "other/full.arrow")
    else:
        by_bytes = read(verify="full")
    train = opened(folder / "all/a", with_labels=False, verify="full")
    assert common(train, by_bytes)[0] == 4
    assert common(by_bytes, train)[0] == 4
    if kind != "cached":  # which knows them from then on
        assert common(train, read()) is None


@pytest.mark.parametrize("side", ["both", "train", "val"])
def test_paths_that_lead_back_out_of_a_folder(side, folder):
    """The same files, from tables in other folders."""
    names = [f"all/{name}/{number}.png" for name in "ab" for number in range(4)]
    for split in ("train", "val"):
        leads_back = side in ("both", split)
        place = folder / split if leads_back else folder
        place.mkdir(exist_ok=True)
        start = "../" if leads_back else ""
        rows = [f"{start}{path},{path[4]}\n" for path in names[:: 1 if split == "train" else 3]]
        (place / f"{split}_rows.csv").write_text("path,label\n" + "".join(rows))
    train, val = (
        opened((folder / split if side in ("both", split) else folder) / f"{split}_rows.csv")
        for split in ("train", "val")
    )
    assert common(train, val)[0] == 3
    assert common(train.filter("class == 'b'"), val)[0] == 1


def test_a_root_that_is_a_link(folder):
    (folder / "val").symlink_to(folder / "all")
    assert common(opened(folder / "all"), opened(folder / "val"))[0] == 8


def test_a_folder_behind_a_link_and_absolute_paths(folder, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    rows = [f"{tmp_path}/link/all/a/{number}.png,a\n" for number in range(2)]
    (folder / "absolute.csv").write_text("path,label\n" + "".join(rows))
    val = opened(folder / "absolute.csv")
    assert common(opened(tmp_path / "link/all"), val)[0] == 2


def test_a_path_that_leads_back_is_the_same_file(folder):
    rows = "path,label\nall/a/0.png,a\nall/b/../a/0.png,b\nall/b/1.png,b\n"
    (folder / "t.csv").write_text(rows)
    (doubt,) = [each for each in opened(folder / "t.csv").omissions if each.unit == "doubt"]
    assert doubt.kind.startswith("files in several rows with different labels")


def test_links_lead_to_the_same_bytes(folder, tmp_path):
    (tmp_path / "val/a").mkdir(parents=True)
    (tmp_path / "val/a/first.png").symlink_to(folder / "all/a/1.png")
    write_pictures(tmp_path / "val/b", 6)
    train, val = (opened(place, verify="full") for place in (folder / "all", tmp_path / "val"))
    assert common(train, val) == (5, ["a/first.png", "b/0.png", "b/1.png"])


def test_a_saved_part_is_found_again(folder):
    train = opened(folder / "all")
    train.filter("class == 'b'").save(folder / "m.arrow")
    assert common(train, dp.Manifest.load(folder / "m.arrow"))[0] == 4


def loader(manifest, transform):
    config = dp.TorchConfig(num_workers=0)
    return dp.build_loader(manifest, config, transform=transform, batch_size=2, device="cpu")


@pytest.mark.parametrize("first", [0, 1])
def test_loaders_of_both_say_so_once(folder, caplog, first):
    manifests = opened(folder / "all"), opened(folder / "val.csv")
    for number in (first, 1 - first, first):
        loader(manifests[number], SMALL[number]).close()
    said = [line for line in caplog.messages if "also trained on" in line]
    assert said == [
        f"{folder}: in doubt: validation images are also trained on (all of them), so that what is "
        "measured on them says nothing of new images: 2 (all/a/0.png, all/b/1.png); give other "
        "images, or validation=split:0.1"
    ]


def test_another_rank_is_silent(folder, caplog, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    train, val = opened(folder / "train.csv"), opened(folder / "val.csv")
    loader(train, SMALL[0]).close()
    loader(val, SMALL[1]).close()
    assert "also trained on" not in caplog.text


def test_training_keeps_it_for_the_summary_and_refuses_it_if_strict(folder, caplog):
    caplog.set_level(logging.INFO)
    data = DataConfig(train=str(folder / "train.csv"), val=str(folder / "val.csv"))
    _, val = open_both(TrainConfig(data=data))
    assert [each["number"] for each in left_out(val)] == [2]
    with pytest.raises(dp.OmissionError, match=r"also trained on \(all of them\)"):
        open_both(TrainConfig(data=data, strict=True))
    split = DataConfig(train=str(folder / "train.csv"))
    open_both(TrainConfig(data=split, validation="split:0.25", strict=True))
