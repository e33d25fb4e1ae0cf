"""Images to tars, and back byte for byte."""

import itertools
import json
import shutil
import socket
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from prepared import digests, killed, prepared, result, scan

import dali_pipes as dp
from dali_pipes.data.shards import copies
from dali_pipes.system.locks import locked
from dali_pipes.tools.preparation import config
from dali_pipes.tools.preparation.encode import Encoding, encode, encode_sample


def samples(folder) -> dict[str, dict[str, bytes]]:
    """WebDataset's convention: files that follow each other and agree up to the first dot are a
    sample.
    """
    found = {}
    for file in sorted(folder.glob("*.tar")):
        with tarfile.open(file, "r:") as tar:
            members = [
                (*member.name.split(".", 1), tar.extractfile(member).read()) for member in tar
            ]
        for key, parts in itertools.groupby(members, key=lambda member: member[0]):
            assert key not in found
            found[key] = {extension: content for _, extension, content in parts}
    return found


def test_bytes_labels_and_order_are_those_of_the_manifest(image_folder, manifest, tmp_path):
    folder = prepared(image_folder, tmp_path / "out", to="shards")
    found = samples(folder)
    assert [*found] == [f"{number:09d}" for number in range(37)]
    for number, sample in enumerate(found.values()):
        assert sample == {
            "jpg": manifest.path(number).read_bytes(),
            "cls": str(manifest.labels[number]).encode(),
        }
    assert json.loads((folder / "classes.json").read_text()) == manifest.classes
    assert result(tmp_path / "out")["same_pixels"] == 37 and "difference" not in str(
        result(tmp_path / "out")["difference"]
    )


def test_loaders_read_them_as_they_read_the_folder(image_folder, manifest, tmp_path):
    shards = dp.Manifest.open(prepared(image_folder, tmp_path / "out", to="shards"), progress=False)
    assert shards.classes == manifest.classes and not shards.problems
    for name in ("labels", "sizes", "bytes_each"):
        np.testing.assert_array_equal(getattr(shards, name), getattr(manifest, name))
    batches = []
    for each in (manifest, shards):
        with dp.build_loader(
            each, dp.DaliConfig(device="cpu"), transform=dp.TrainTransform(size=32), batch_size=8
        ) as loader:
            batches.append(list(loader))
    for one, other in zip(*batches, strict=True):
        assert (
            torch.equal(one.images, other.images)
            and torch.equal(one.ids, other.ids)
            and torch.equal(one.labels, other.labels)
        )


@pytest.mark.slow
def test_shards_are_made_smaller_out_of_shards(image_folder, tmp_path):
    whole = prepared(image_folder, tmp_path / "whole", to="shards")
    once = prepared(whole, tmp_path / "once", to="shards", resize=64)
    direct = prepared(image_folder, tmp_path / "direct", to="shards", resize=64)
    assert digests(once) == digests(direct)


@pytest.mark.slow
def test_a_folder_is_made_out_of_shards(image_folder, tmp_path):
    whole = prepared(image_folder, tmp_path / "whole", to="shards")
    folder = scan(prepared(whole, tmp_path / "folder", resize=64))
    direct = scan(prepared(image_folder, tmp_path / "direct", resize=64))
    assert folder.classes == direct.classes
    for name in ("labels", "sizes", "bytes_each"):
        np.testing.assert_array_equal(getattr(folder, name), getattr(direct, name))


def test_the_tars_are_ustar_and_the_same_every_time(image_folder, tmp_path):
    one, other = (prepared(image_folder, tmp_path / name, to="shards") for name in "ab")
    assert digests(one) == digests(other)
    content = (one / "shard-000000.tar").read_bytes()
    assert content[257:265] == b"ustar\x0000"
    with tarfile.open(one / "shard-000000.tar") as tar:
        assert {
            (each.mtime, each.uid, each.gid, each.uname, each.gname, each.mode, each.type)
            for each in tar
        } == {(0, 0, 0, "", "", 0o644, tarfile.REGTYPE)}


def test_no_shard_exceeds_its_size(image_folder, manifest, tmp_path):
    folder = prepared(image_folder, tmp_path / "out", to="shards", shard_mib=1)
    files = sorted(folder.glob("*.tar"))
    assert [file.name for file in files] == [
        f"shard-{number:06d}.tar" for number in range(len(files))
    ] and len(files) > 2
    largest = int(manifest.bytes_each.max()) + 4 * 512 + tarfile.RECORDSIZE
    assert all(2**20 - largest <= file.stat().st_size <= 2**20 for file in files[:-1])
    assert len(samples(folder)) == 37


def test_an_image_larger_than_a_shard_has_one_of_its_own(tmp_path):
    (tmp_path / "set/a").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    from PIL import Image

    for name in ("x", "y"):
        Image.fromarray(pixels).save(tmp_path / f"set/a/{name}.bmp")
    folder = prepared(tmp_path / "set", tmp_path / "out", to="shards", shard_mib=1)
    assert len(list(folder.glob("*.tar"))) == 2 and {*samples(folder)["000000001"]} == {
        "bmp",
        "cls",
    }


def test_bad_images_leave_a_gap_and_extensions_tell_the_format(mixed_folder, tmp_path):
    source = scan(mixed_folder)
    found = samples(prepared(mixed_folder, tmp_path / "out", to="shards"))
    half = next(number for number in range(len(source)) if "half" in str(source.path(number)))
    assert [*found] == [f"{number:09d}" for number in range(len(source)) if number != half]
    assert [next(iter(sample)) for sample in found.values()] == ["jpg", "jpg", "png", "webp", "jpg"]
    assert [int(sample["cls"]) for sample in found.values()] == [0, 0, 0, 0, 2]
    assert {path for path, _ in result(tmp_path / "out")["left_out"]} == {
        "a/empty.jpg",
        "a/half.jpg",
    }


@pytest.mark.slow
def test_with_resize_they_hold_what_a_folder_would(image_folder, manifest, tmp_path):
    found = samples(
        prepared(image_folder, tmp_path / "shards", to="shards", resize=64, agreement_images=8)
    )
    folder = scan(prepared(image_folder, tmp_path / "folder", resize=64))
    assert [sample["jpg"] for sample in found.values()] == [
        folder.path(number).read_bytes() for number in range(37)
    ]
    height, width = manifest.sizes[3].tolist()
    assert (
        found["000000003"]["jpg"]
        == encode(manifest.path(3).read_bytes, (height, width), 1, Encoding(64, 90, "keep")).content
    )
    difference = result(tmp_path / "shards")["difference"]
    assert (
        difference["images"] == 8
        and 0 < difference["evaluation"]["mean"] < difference["training"]["mean"] < 60
    )


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_at_the_next_shard(large_folder, tmp_path):
    options = {"to": "shards", "resize": 400, "shard_mib": 1}
    made = tmp_path / "out/train"
    killed(lambda: len(list(made.glob("*.tar"))) > 1, large_folder, tmp_path / "out", **options)
    there = digests(made)
    kept = len(samples(made))
    prepared(large_folder, tmp_path / "out", **options)
    whole = digests(prepared(large_folder, tmp_path / "whole", **options))
    assert digests(made) == whole and there.items() <= whole.items() and 2 < len(there) < len(whole)
    assert result(tmp_path / "out")["kept"] == kept and result(tmp_path / "out")["images"] == 120


def test_a_second_run_changes_nothing(mixed_folder, tmp_path):
    before = digests(prepared(mixed_folder, tmp_path / "out", to="shards"))
    first = result(tmp_path / "out")
    prepared(mixed_folder, tmp_path / "out", to="shards")
    assert digests(tmp_path / "out/train") == before
    assert result(tmp_path / "out") == first | {"kept": 5, "same_pixels": 0}


def test_a_table_keeps_its_order_in_shards_and_is_refused_a_folder(
    image_folder, manifest, tmp_path
):
    lines = [f"{manifest.path(number)},{(7 * number) % 3}" for number in range(9)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label", *lines]) + "\n")
    found = samples(prepared(tmp_path / "table.csv", tmp_path / "out", to="shards"))
    assert [int(sample["cls"]) for sample in found.values()] == [
        (7 * number) % 3 for number in range(9)
    ]
    with pytest.raises(dp.ConfigError, match="to=shards keeps their order"):
        prepared(tmp_path / "table.csv", tmp_path / "folder", resize=64)


@pytest.mark.slow
def test_a_shard_that_is_missing_is_made_again(image_folder, tmp_path):
    folder = prepared(image_folder, tmp_path / "out", to="shards", shard_mib=1)
    before = digests(folder)
    (folder / "shard-000001.tar").unlink()
    prepared(image_folder, tmp_path / "out", to="shards", shard_mib=1)
    assert digests(folder) == before


@pytest.mark.few
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / "shard-000001.tar").write_bytes(
                (folder / "shard-000001.tar").read_bytes()[:700]
            ),
            "was not written by an",
        ),
        (
            lambda folder: (folder / "shard-000001.tar").rename(folder / "shard-000000.tar"),
            "it holds other samples",
        ),
        (
            lambda folder: (folder / "shard-000099.tar").write_bytes(b""),
            "shard-000099.tar was not written by this run",
        ),
    ],
)
def test_shards_that_this_run_did_not_write_are_refused(image_folder, tmp_path, damage, message):
    folder = prepared(image_folder, tmp_path / "out", to="shards", shard_mib=1)
    damage(folder)
    with pytest.raises(dp.DaliPipesError, match=message):
        prepared(image_folder, tmp_path / "out", to="shards", shard_mib=1)


def test_hugging_faces_parquet_becomes_shards(tmp_path, monkeypatch):
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    files = Path(__file__).parents[2] / "data/shards/files"
    folder = prepared(files, tmp_path / "out", to="shards")
    source = dp.Manifest.open(files, progress=False)
    made = dp.Manifest.open(folder, progress=False)
    assert (
        made.classes == source.classes == ["cat", "dog", "eft"]
        and made.labels.tolist() == source.labels.tolist()
    )
    assert [made.read(number).tobytes() for number in range(9)] == [
        source.read(number).tobytes() for number in range(9)
    ]


@pytest.mark.slow
def test_prepared_shards_are_opened_by_their_index_when_they_are_uploaded(
    image_folder, manifest, tmp_path, monkeypatch
):
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    folder = prepared(image_folder, tmp_path / "out", to="shards", shard_mib=1)
    shutil.copytree(folder, tmp_path / "bucket", copy_function=shutil.copyfile)
    monkeypatch.setattr(copies, "_make", None)  # no shard is fetched
    there = dp.Manifest.open(f"file://{tmp_path}/bucket", progress=False)
    assert (
        len(there) == 37
        and there.fingerprint == dp.Manifest.open(folder, progress=False).fingerprint
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"to": "shards", "shard_mib": 1}, {"to": "shards", "resize": 30}, {"resize": 30}],
    ids=str,
)
def test_parts_in_any_order_make_what_one_run_makes(mixed_folder, image_folder, tmp_path, options):
    images, out = image_folder if "shard_mib" in options else mixed_folder, tmp_path / "parts"
    whole = digests(prepared(images, tmp_path / "whole", **options))
    for part in ("3/3", "1/3"):
        prepared(images, out, part=part, **options)
    if "shard_mib" in options:
        with pytest.raises(
            dp.DaliPipesError,
            match=r"shards are missing, such as .*shard-000001.tar; run their parts again",
        ):
            prepared(images, out, part="merge", **options)
    prepared(images, out, part="2/3", **options)
    assert digests(prepared(images, out, part="merge", **options)) == whole
    assert {**result(out), "kept": 0, "same_pixels": 0} == {
        **result(tmp_path / "whole"),
        "kept": 0,
        "same_pixels": 0,
    }


def test_a_merge_makes_nothing_that_its_parts_left_out(mixed_folder, tmp_path):
    prepared(mixed_folder, tmp_path / "out", resize=30, part="1/2")
    with pytest.raises(
        dp.DaliPipesError,
        match=r"images are missing, such as .*jpg; run their parts again, and then part=merge",
    ):
        prepared(mixed_folder, tmp_path / "out", resize=30, part="merge")


@pytest.mark.parametrize("part", ["0/4", "5/4", "a", "1/0", "1", "-1/2", "1/2/3"])
def test_what_is_no_part_is_refused(image_folder, tmp_path, part):
    with pytest.raises(dp.ConfigError, match=f"part is {part}; it takes 1/8 to 8/8"):
        prepared(image_folder, tmp_path / "out", to="shards", part=part)


def test_parts_with_other_options_or_beside_a_whole_run_are_refused(image_folder, tmp_path):
    prepared(image_folder, tmp_path / "out", to="shards", part="1/2")
    with pytest.raises(
        dp.DaliPipesError, match="was started with other options: shard_mib was 256, and now is 1"
    ):
        prepared(image_folder, tmp_path / "out", to="shards", part="2/2", shard_mib=1)
    with (
        locked(tmp_path / "out" / ".unfinished_lock"),
        pytest.raises(dp.DaliPipesError, match="another run is writing there"),
    ):
        prepared(image_folder, tmp_path / "out", to="shards", part="2/2")


def test_ray_is_for_shards_and_has_to_be_there(image_folder, tmp_path, monkeypatch):
    with pytest.raises(dp.ConfigError, match="engine=ray writes shards; add to=shards"):
        prepared(image_folder, tmp_path / "out", resize=64, engine="ray")
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    with pytest.raises(
        dp.ConfigError, match=r"engine=ray needs Ray; pip install 'dali_pipes\[ray\]'"
    ):
        prepared(image_folder, tmp_path / "out", to="shards", engine="ray")


def test_a_part_reports_its_own_work(image_folder, tmp_path):
    for number in (1, 2, 3):
        prepared(image_folder, tmp_path / "out", to="shards", shard_mib=1, part=f"{number}/3")
    made = [
        json.loads((tmp_path / f"out/prepared-{number}-of-3.json").read_text())["splits"]["train"][
            "result"
        ]
        for number in (1, 2, 3)
    ]
    assert sum(each["images"] for each in made) == 37 and all(
        each["images"] < 37 and not each["kept"] for each in made
    )


def test_what_a_store_does_not_give_ends_the_run_and_is_no_bad_image(
    image_folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("DALI_PIPES_CACHE", str(tmp_path / "cache"))
    folder = prepared(image_folder, tmp_path / "whole", to="shards", shard_mib=1)
    whole = digests(folder)
    monkeypatch.setattr(copies, "download", _away)
    source = dp.Manifest.open(f"file://{folder}", progress=False)
    with pytest.raises(
        dp.DaliPipesError,
        match=(
            r"shard-0000\d\d.tar/.*: connection reset by peer; start again when it can be " r"read"
        ),
    ):
        encode_sample(source, None, 30)
    monkeypatch.undo()
    assert digests(folder) == whole


def _away(url, version, file):
    raise ConnectionResetError("connection reset by peer")


@pytest.fixture(scope="module")
def ray():
    """Before a test looks at the process: the import of Ray changes sys.excepthook."""
    return pytest.importorskip("ray")


def test_a_ray_that_does_not_answer_is_named(ray, image_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(
        dp.DaliPipesError,
        match=(
            r"RAY_ADDRESS=127.0.0.1:9: no Ray answers there \(.*\); correct it, or leave it " r"out"
        ),
    ):
        prepared(image_folder, tmp_path / "out", to="shards", engine="ray")


def test_an_ipv6_address_of_ray_is_understood():
    pytest.importorskip("ray")
    from dali_pipes.tools.preparation.on_ray import _check_answers

    try:
        head = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    address = f"[::1]:{head.getsockname()[1]}"
    with head:
        for written in (address, f"ray://{address}"):
            _check_answers(written)
    with pytest.raises(dp.DaliPipesError, match=r"RAY_ADDRESS=\[::1\]:\d+: no Ray answers there"):
        _check_answers(address)
