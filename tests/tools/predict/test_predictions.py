"""dali-pipes predict: every image once, as a loop of PyTorch has it; bad images, other processes,
and what is refused.
"""

import importlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from faults import FAULTS
from make_shards import tar_shards
from tools.predict.conftest import EVAL, NETWORK, contents

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import DaliPipesError
from dali_pipes.measure.arms import SyntheticConfig
from dali_pipes.tools.predict import parts
from dali_pipes.tools.predict.run import predict
from dali_pipes.training import checkpoint
from dali_pipes.training.config import ModelConfig
from dali_pipes.training.network.build import build_model

FUNCTIONS = """
import torch
def means(): return lambda images: images.mean(dim=(2, 3))
def pixels(): return lambda images: images[:, :, :2, 0].flatten(1)
def linear():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 4))
def maps(): return lambda images: images
def pairs(): return lambda images: (images, images)
def convolution():
    pooled = torch.nn.AdaptiveAvgPool2d(1)
    return torch.nn.Sequential(torch.nn.Conv2d(3, 2, 1), pooled, torch.nn.Flatten())
def nothing(): return 3
"""


@pytest.fixture(autouse=True)
def functions(tmp_path, monkeypatch):
    (tmp_path / "my_functions.py").write_text(FUNCTIONS)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delitem(sys.modules, "my_functions", raising=False)


@pytest.fixture
def loop(thumbnails):
    """What a loop of one's own gives: a tensor of all images."""

    @torch.no_grad()
    def go(model):
        config = dp.DaliConfig(device="cpu", num_threads=1)
        with dp.build_loader(thumbnails, config, transform=EVAL, batch_size=4) as loader:
            return torch.cat([model(batch.images) for batch in loader])

    return go


def column(rows, name):
    return torch.tensor([row[name] for row in rows])


def test_logits_are_those_of_a_loop(run, loop, network, thumbnails):
    rows, line = run()
    assert torch.equal(column(rows, "logits"), loop(network))
    assert [row["id"] for row in rows] == list(range(37))
    assert [str(thumbnails.root / row["path"]) for row in rows] == [
        thumbnails.name(each) for each in range(37)
    ]
    assert {row["problem"] for row in rows} == {None}
    assert (line["images"], line["problems"], line["files"], line["images_now"]) == (37, 0, 5, 37)


def test_images_in_shards_are_named_by_shard_and_member(run, loop, network, thumbnails, tmp_path):
    rows, _ = run(data=DataConfig(val=str(tar_shards(thumbnails, tmp_path / "shards", 20))))
    assert [rows[0]["path"], rows[36]["path"]] == [
        "shard-000000.tar/000000000.jpg",
        "shard-000001.tar/000000036.jpg",
    ]
    assert torch.equal(column(rows, "logits"), loop(network))


def test_top_k(run, loop, network):
    rows, _ = run(output="topk", k=3)
    scores, classes = loop(network).softmax(1).topk(3)
    assert torch.equal(column(rows, "classes"), classes) and torch.equal(
        column(rows, "scores"), scores
    )


def test_embeddings_are_what_goes_into_the_last_linear_layer(run, loop, network):
    rows, _ = run(output="embeddings")
    # as in the loop: the last bits depend on the size of a batch
    batches = column(rows, "embedding").split(4)
    assert torch.equal(torch.cat([network.fc(batch) for batch in batches]), loop(network))
    assert len(rows[0]["embedding"]) == network.fc.in_features


def test_half_precision_is_autocast(run, loop):
    rows, _ = run(function="my_functions:linear", precision="bf16")
    model = importlib.import_module("my_functions").linear()
    with torch.autocast("cpu", torch.bfloat16):
        expected = loop(model)
    assert expected.dtype == torch.bfloat16 and torch.equal(
        column(rows, "logits"), expected.float()
    )


def test_the_types_of_the_columns(run, tmp_path):
    run(output="topk", k=2)
    schema = pa.parquet.read_schema(tmp_path / "out/part-000000.parquet")
    types = {
        "id": pa.int64(),
        "path": pa.string(),
        "classes": pa.list_(pa.int32(), 2),
        "scores": pa.list_(pa.float32(), 2),
    }
    assert dict(zip(schema.names, schema.types, strict=True)) == types | {"problem": pa.string()}


def test_a_function_of_ones_own(run, loop):
    rows, _ = run(function="my_functions:means")
    assert torch.equal(column(rows, "logits"), loop(lambda images: images.mean(dim=(2, 3))))


def test_a_function_gets_bytes_if_the_transform_says_so(run):
    rows, _ = run(
        function="my_functions:pixels",
        transform=dp.EvalTransform(size=32, resize=36, dtype="uint8"),
    )
    values = column(rows, "logits")
    assert torch.equal(values, values.round()) and values.max() > 200


def test_images_of_one_channel(run):
    gray = {"channels": 1, "mean": [0.5], "std": [0.25]}
    rows, _ = run(
        function="my_functions:means", transform=dp.EvalTransform(size=32, resize=36, **gray)
    )
    assert column(rows, "logits").shape[1] == 1


def test_weights_of_training_bring_their_name_classes_and_average(run, loop, network, tmp_path):
    average = {f"module.{name}": value * 1.5 for name, value in network.state_dict().items()}
    state = {
        "name": NETWORK,
        "classes": list("abcdefg"),
        "model": network.state_dict(),
        "ema": average | {"n_averaged": 1},
    }
    checkpoint.save(state, tmp_path / "best.pt")
    rows, _ = run(checkpoint="best.pt", model=ModelConfig(name=None, channels_last=False))
    averaged = type(network)([4, 8, 4], [24, 48, 96, 192, 1024], 7).eval()
    averaged.load_state_dict({name: value * 1.5 for name, value in network.state_dict().items()})
    assert torch.equal(column(rows, "logits"), loop(averaged))
    assert json.loads((tmp_path / "out/_predict.json").read_text())["classes"] == list("abcdefg")


def test_other_pixels_than_those_of_training_are_said(config, network, tmp_path, capsys):
    kept = {"transform.mean": [0.1, 0.1, 0.1], "transform.std": [0.2, 0.2, 0.2]}
    state = {"name": NETWORK, "classes": list("abcdefg"), "model": network.state_dict()}
    checkpoint.save(state | {"ema": None, "options": kept}, tmp_path / "best.pt")
    model = ModelConfig(name=None, channels_last=False)

    def said(**options):
        capsys.readouterr()
        predict(config(checkpoint="best.pt", model=model, **options))
        return capsys.readouterr().err

    assert "trained with [0.1,0.1,0.1]; set transform.mean=[0.1,0.1,0.1]" in said()
    same = dp.EvalTransform(size=32, resize=36, mean=(0.1, 0.1, 0.1), std=(0.2, 0.2, 0.2))
    assert "Note: " not in said(transform=same, out=str(tmp_path / "again"))


def test_the_options_of_a_network_are_given_with_its_checkpoint(run, loop, tmp_path):
    options = {"width_mult": 0.25}
    trained = build_model("mobilenet_v2", 7, options=options).eval()
    state = {
        "name": "mobilenet_v2",
        "model_options": options,
        "classes": list("abcdefg"),
        "model": trained.state_dict(),
        "ema": None,
    }
    checkpoint.save(state, tmp_path / "best.pt")
    same = ModelConfig(name=None, channels_last=False, options=options)
    rows, _ = run(checkpoint="best.pt", model=same)
    assert torch.equal(column(rows, "logits"), loop(trained))

    for given in ({}, {"width_mult": 0.5}):
        other = ModelConfig(name=None, channels_last=False, options=given)
        with pytest.raises(DaliPipesError, match=r"set 'model.options=\{width_mult: 0.25\}'"):
            run(checkpoint="best.pt", model=other, out=str(tmp_path / "other"))


class Killed(BaseException):
    pass


def killed_at(monkeypatch, number):
    """The process ends in the middle of the file that it writes as the `number`-th; what it has
    written of that stays.
    """
    write, count = parts.pq.write_table, iter(range(number + 1))

    def dying(table, file, **options):
        if next(count) < number:
            return write(table, file, **options)
        Path(file.name).with_name(f".part-000009.parquet.{number}").write_bytes(b"PAR1 half")
        raise Killed

    monkeypatch.setattr(parts.pq, "write_table", dying)


def test_killed_ranks_go_on_in_any_number(config, run, monkeypatch, tmp_path, capsys):
    run(out=str(tmp_path / "whole"))
    for rank, count, until in [(0, 3, 1), (2, 3, 0), (1, 3, 1), (1, 2, 0), (0, 2, 9), (0, 1, 9)]:
        there = {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("out/part-*")}
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(count))
        with monkeypatch.context() as patched:
            killed_at(patched, until)
            if until < 9:
                with pytest.raises(Killed):
                    predict(config())
            else:
                predict(config())
        assert (
            there.items()
            <= {file.name: file.stat().st_mtime_ns for file in tmp_path.glob("out/part-*")}.items()
        )
    assert len(capsys.readouterr().out.splitlines()) == 1, "the last one says that all is there"
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_a_rank_that_is_not_the_last_says_what_is_to_come(config, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    predict(config())
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("rank 1 of 3: 13 images now, ")
    assert shown.err.endswith(" images/s with start-up; 3 files of other ranks are still to come\n")


def test_the_threads_are_those_of_the_first_start(config, tmp_path):
    predict(config(threads=1))
    for file in tmp_path.glob("out/part-00000[1-4]*"):
        file.unlink()
    torch.set_num_threads(2)
    predict(config(threads=None))
    assert torch.get_num_threads() == 1


def test_what_is_there_is_not_made_again(run, tmp_path):
    run()
    before = contents(tmp_path / "out")
    _, line = run()
    assert (line["images_now"], line["images"]) == (0, 37) and contents(tmp_path / "out") == before


def paths(manifest):
    return [os.fsdecode(path) for path in manifest.samples["path"].to_pylist()]


@pytest.fixture
def spoiled(scanned, tmp_path):
    """37 images, of which the scan found one unusable; then one in a batch, the two of another
    batch and the last one went bad.
    """
    scanned.path(3).write_bytes(b"no image")
    manifest = dp.Manifest.scan(scanned.root, cache=tmp_path / "spoiled.arrow", progress=False)
    assert len(manifest) == 36
    for sample_id, fault in zip(
        (5, 8, 9, 35), ("truncated to half", "deleted", "garbage", "zero bytes"), strict=True
    ):
        FAULTS[fault](manifest.path(sample_id))
    return manifest


@pytest.mark.parametrize("size", [2, 5])
def test_bad_images_are_listed_and_cost_no_other(
    run, loop, network, thumbnails, spoiled, tmp_path, size
):
    data = DataConfig(val=str(tmp_path / "spoiled.arrow"))
    rows, line = run(data=data, batch_size=size, part_batches=3, max_bad_fraction=0.2)
    bad = [row for row in rows if row["problem"]]
    unusable = str(thumbnails.path(3).relative_to(thumbnails.root))
    assert sorted(row["path"] for row in rows) == sorted(paths(thumbnails))
    assert [(row["id"], row["logits"]) for row in bad] == [
        (5, None),
        (8, None),
        (9, None),
        (35, None),
        (None, None),
    ]
    assert (
        bad[-1]["path"] == unusable
        and bad[1]["problem"] == "no such file or directory"
        and (line["images"], line["problems"]) == (37, 5)
    )
    good = {row["path"]: row["logits"] for row in rows if not row["problem"]}
    expected = dict(zip(paths(thumbnails), loop(network).tolist(), strict=True))
    assert all(np.allclose(logits, expected[path], atol=1e-5) for path, logits in good.items())


def test_the_share_that_may_be_bad_is_of_all_images(run, spoiled, tmp_path):
    """However few of them are left to do."""
    options = {"data": DataConfig(val=str(tmp_path / "spoiled.arrow")), "max_bad_fraction": 0.12}
    before, _ = run(**options)
    (tmp_path / "out/part-000004.parquet").unlink()
    after, line = run(**options)
    assert after == before and line["images_now"] == 4 and before[35]["problem"]


def test_nothing_but_bad_images(run, tmp_path):
    (tmp_path / "bad/class").mkdir(parents=True)
    (tmp_path / "bad/class/a.jpg").write_bytes(b"no image")
    with pytest.raises(
        dp.ManifestError,
        match=r"1 of 1 images cannot be used, more than max_bad_fraction=0\.1 allows",
    ):
        run(data=DataConfig(val=str(tmp_path / "bad")))
    rows, _ = run(data=DataConfig(val=str(tmp_path / "bad")), max_bad_fraction=1)
    assert [(row["id"], row["path"], row["logits"]) for row in rows] == [
        (None, "class/a.jpg", None)
    ] and rows[0]["problem"]


def test_a_disk_that_is_gone_is_not_a_result(config, spoiled, tmp_path):
    for sample_id in range(20, 30):
        spoiled.path(sample_id).unlink(missing_ok=True)
    with pytest.raises(dp.BadSampleError, match=r"more than max_bad_fraction allows"):
        predict(config(data=DataConfig(val=str(tmp_path / "spoiled.arrow"))))
    assert (tmp_path / "out/part-000000.parquet").exists() and not (
        tmp_path / "out/part-000003.parquet"
    ).exists()


@pytest.mark.few
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 5}, "batch_size was 4, and now is 5"),
        (
            {"transform": dp.EvalTransform(size=32, resize=40)},
            "transform.resize was 36, and now is 40",
        ),
        ({"output": "topk"}, "output was logits, and now is top-5"),
        (
            {"loader": dp.TorchConfig(num_workers=0)},
            "loader.kind was DaliConfig, and now is TorchConfig",
        ),
        ({"checkpoint": "other.pt"}, "model.sha256.checkpoint was "),
        ({"data": "other"}, "images was "),
        ({"threads": 2}, "threads was 1, and now is 2"),
        ({"transform": dp.TenCropTransform(size=32, resize=36)}, "makes several views of each"),
    ],
)
def test_other_work_is_refused_by_name(config, network, thumbnails, tmp_path, options, message):
    predict(config())
    before = contents(tmp_path / "out")
    torch.save(
        {name: value + 1 for name, value in network.state_dict().items()}, tmp_path / "other.pt"
    )
    thumbnails.subset(np.arange(36)).save(tmp_path / "other.arrow")
    if "data" in options:
        options = {"data": DataConfig(val=str(tmp_path / "other.arrow"))}
    with pytest.raises(DaliPipesError, match=message):
        predict(config(**options))
    assert contents(tmp_path / "out") == before


def test_a_folder_of_something_else_is_refused(config, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/thesis.tex").write_text("mine")
    with pytest.raises(DaliPipesError, match="is not empty and holds no prediction"):
        predict(config())
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["thesis.tex"]


WRONG = {
    "no output folder given": {"out": None},
    "no weights given": {"checkpoint": None},
    "are two models": {"function": "my_functions:means", "model": ModelConfig(name=NETWORK)},
    "model.options is for a network of model.name": {
        "function": "my_functions:means",
        "model": ModelConfig(name=None, options={"width_mult": 0.5}),
    },
    "the transform is random": {"transform": dp.TrainTransform(size=32)},
    "not normalized": {"transform": dp.EvalTransform(size=32, resize=36, dtype="uint8")},
    "for benchmarks only": {"loader": SyntheticConfig()},
    "no such checkpoint": {"checkpoint": "none.pt"},
    "neither a checkpoint of training nor a state dict": {"checkpoint": "text.pt"},
    r"weights.pt: not the weights of this model .* Missing key": {
        "model": ModelConfig(name="resnet18")
    },
    "no model is named": {"model": ModelConfig(name=None)},
    "weights.pt: not the weights": {"function": "my_functions:means", "checkpoint": "weights.pt"},
    "there is no module nowhere in": {"function": "nowhere:make"},
    "has no function nobody": {"function": "my_functions:nobody"},
    "returns int; it must return the model": {"function": "my_functions:nothing"},
    r"gives \(1, 3, 32, 32\)": {"function": "my_functions:maps"},
    "my_functions:pairs gives tuple": {"function": "my_functions:pairs"},
    "my_functions:convolution has none; use output=logits": {
        "function": "my_functions:convolution",
        "output": "embeddings",
    },
    f"k=8, but {NETWORK} has 7 outputs": {"output": "topk", "k": 8},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_cannot_work_is_named(config, tmp_path, message):
    torch.save("hello", tmp_path / "text.pt")
    with pytest.raises(DaliPipesError, match=message):
        predict(config(**WRONG[message]))
    assert not (tmp_path / "out").exists(), "the right options can take it"


@pytest.mark.slow
def test_the_command(command, config, tmp_path, monkeypatch):
    small = [
        "transform.size=32",
        "transform.resize=36",
        "batch_size=4",
        "part_batches=2",
        "loader=dali_cpu",
        "threads=1",
    ]
    words = [
        "predict",
        f"data.val={tmp_path / 'set.arrow'}",
        "checkpoint=weights.pt",
        f"model.name={NETWORK}",
        "out=mine",
        *small,
    ]
    config()
    write, calls = parts.pq.write_table, iter(range(99))

    def interrupted(*given, **options):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return write(*given, **options)

    monkeypatch.setattr(parts.pq, "write_table", interrupted)
    done = command(*words)
    assert done.returncode == 130 and done.stdout == ""
    assert done.stderr == (
        "2 of 5 files are written; the same command goes on from there\nerror: interrupted\n"
    )
    done = command(*words)
    assert done.returncode == 0 and json.loads(done.stdout)["images_now"] == 37 - 16
    assert done.stderr.endswith("; mine: images 37, problems 0, files 5\n")
    assert done.stderr.startswith("21 images now, ") and done.stderr.count("\n") == 1
    done = command(*words, "output=topk", "k=3")
    assert (
        done.returncode == 2
        and "output was logits, and now is top-3" in done.stderr
        and done.stderr.count("\n") == 1
    )
