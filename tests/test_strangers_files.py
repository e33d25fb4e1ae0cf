"""Files of strangers: what they name is not imported, called, unpickled or opened.

Each of them would leave `MARK` in the working directory.
"""

import contextlib
import io
import json
import os
import pickle
import runpy
import shutil
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from made_up_runs import save_benchmark

import dali_pipes as dp
from dali_pipes.data.shards.store_requests import request_once
from dali_pipes.errors import DaliPipesError
from dali_pipes.system.files import read_yaml
from dali_pipes.tools.benchmark.page import write_page
from dali_pipes.training import checkpoint
from dali_pipes.training.config import ModelConfig
from dali_pipes.training.network.build import build_network
from dali_pipes.training.network.weights import find_weights

MODULE = "from pathlib import Path\n\nPath('MARK').touch()\n\n\ndef run(*_, **__):\n    pass\n"
NETWORK = "shufflenet_v2_x0_5"


class Payload:
    def __reduce__(self):
        return os.system, ("touch MARK",)


PICKLED = pickle.dumps(Payload())


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with a module that leaves the mark when it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "stranger", raising=False)
    (tmp_path / "stranger.py").write_text(MODULE)
    yield tmp_path
    assert not (tmp_path / "MARK").exists(), "the file's code has run"


def write_checkpoint(file, **changed):
    network = build_network(ModelConfig(name=NETWORK), 5)
    state = {
        "name": NETWORK,
        "model_options": {},
        "task": "classification",
        "classes": list("abcde"),
        "channels": 3,
        "options": {"transform.mean": [0.5] * 3, "transform.std": [0.25] * 3},
        "model": network.state_dict(),
        "ema": None,
    }
    checkpoint.save(state | changed, Path(file))


OF_CALL = {"model_options": {"cmd": "touch MARK"}}
NAMES = {
    "subprocess:getoutput": ("model.function", "set model.function=subprocess:getoutput"),
    "stranger:run": ("model.function", "set model.function=stranger:run"),
    "./stranger.py:run": ("model.function", "set model.function=./stranger.py:run"),
    "os.path:exists' ; touch MARK '": (
        "model.function",
        """set 'model.function=os.path:exists'"'"' ; touch MARK '"'"''""",
    ),
    "./folder": ("model.name", "set model.name=./folder"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_names_no_code(command, image_folder, name):
    write_checkpoint("strangers.pt", name=name, **OF_CALL)
    given = [f"data.val={image_folder}", "checkpoint=strangers.pt", "model=resnet50"]
    done = command("train", "eval_only=true", *given)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: strangers.pt: of ") and NAMES[name][1] in done.stderr


@pytest.mark.parametrize("name", [*NAMES, "get_model", "resnet", "__init__"])
def test_the_example_of_predictions_builds_what_torchvision_has(name, image_folder):
    """A module of torchvision.models is no network either."""
    write_checkpoint("strangers.pt", name=name, task="classification", model_options={})
    predict = runpy.run_path(str(Path(__file__).parents[1] / "examples/predict.py"))["main"]
    with pytest.raises(SystemExit, match="which is not torchvision's"):
        predict("strangers.pt", str(image_folder), "out.csv")
    write_checkpoint("strangers.pt", task="classification", **OF_CALL)
    with pytest.raises(SystemExit, match="which is not torchvision's"):
        predict("strangers.pt", str(image_folder), "out.csv")


@pytest.mark.slow
def test_a_checkpoint_sets_no_options(command, image_folder):
    write_checkpoint("strangers.pt", name="mobilenet_v2", model_options={"width_mult": 0.25})
    words = [f"data.val={image_folder}", "checkpoint=strangers.pt", "model.name=mobilenet_v2"]
    done = command("train", "eval_only=true", *words)
    assert "set 'model.options={width_mult: 0.25}'" in done.stderr and done.returncode == 2


@pytest.mark.parametrize("name", [None, 5, ["stranger", "run"]])
def test_a_name_that_is_no_name_is_refused(name):
    write_checkpoint("strangers.pt", name=name)
    with pytest.raises(checkpoint.CheckpointError, match="it names no network"):
        checkpoint.load(Path("strangers.pt"))


@pytest.mark.parametrize("ending", [".pt", ".pth", ".ckpt", ".bin", ".tar"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_pickle_is_no_checkpoint(ending, whole):
    write_checkpoint("strangers.pt")
    state = torch.load("strangers.pt", weights_only=True)
    torch.save(state | {"note": Payload()}, "whole")
    file = Path(f"strangers{ending}")
    file.write_bytes(Path("whole").read_bytes() if whole else PICKLED)
    for read in (checkpoint.load, lambda path: find_weights(str(path), NETWORK)):
        with pytest.raises(checkpoint.CheckpointError, match=r"could run code|not a whole"):
            read(file)


@pytest.mark.slow
def test_the_function_of_the_command_line_takes_its_checkpoint(command, image_folder, folder):
    """A legitimate one goes on working, in every job that reads it."""
    source = "from torchvision import models\n\n\ndef make(num_classes):\n"
    source += "    return models.shufflenet_v2_x0_5(num_classes=num_classes)\n"
    (folder / "mine.py").write_text(source)
    classes = {"classes": sorted(each.name for each in image_folder.iterdir())}
    write_checkpoint("mine.pt", name="mine:make", **classes)
    small = ["transform.size=32", "eval_transform.resize=36", "loader=dali_cpu"]
    words = ["eval_only=true", f"data.val={image_folder}", *small]
    done = command("train", *words, "checkpoint=mine.pt", "model.function=mine:make")
    assert done.returncode == 0, done.stderr
    write_checkpoint("library.pt", **classes)
    done = command("train", *words, "checkpoint=library.pt", f"model.name={NETWORK}")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("key", ["auto_map", "attn_implementation"])
@pytest.mark.parametrize("kind", ["vit", "own"])
def test_a_folder_of_hugging_face_names_no_code(key, kind, monkeypatch):
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"intermediate_size": 8, "image_size": 32, "patch_size": 16, "num_labels": 3}
    transformers.ViTForImageClassification(transformers.ViTConfig(**small)).save_pretrained("hf")
    shutil.copy("stranger.py", "hf/evil.py")
    mapped = {"AutoConfig": "evil.A", "AutoModelForImageClassification": "evil.B"}
    value = {"auto_map": mapped, "attn_implementation": "stranger/kernel"}[key]
    file = Path("hf/config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value, "model_type": kind}))
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # transformers would ask

    # what transformers has itself is taken in place of the folder's code
    if (key, kind) == ("auto_map", "vit"):
        build_network(ModelConfig(name="./hf"), 3)
        return
    with pytest.raises(DaliPipesError, match=r"names code, which is not run|cannot make a class"):
        build_network(ModelConfig(name="./hf"), 3)


def test_timm_reads_no_file_in_its_own_way():
    pytest.importorskip("timm")
    options = {"checkpoint_path": "strangers.pth"}
    Path("strangers.pth").write_bytes(PICKLED)
    with pytest.raises(DaliPipesError, match=r"checkpoint_path is not taken; set model\.weights="):
        build_network(ModelConfig(name="timm/resnet18", options=options), 3)


def spoil(table):
    """Adds all that libraries have once unpickled or built from the metadata of a table."""
    types = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": PICKLED,
    }
    fields = [each.with_metadata(types) for each in table.schema]
    head = dict(table.schema.metadata or {}) | {b"pandas": PICKLED, b"huggingface": PICKLED}
    return table.cast(pa.schema(fields, metadata=head))


@pytest.mark.parametrize("file", ["set.arrow", "set.parquet"])
def test_the_metadata_of_a_manifest_names_no_code(thumbnails, file):
    thumbnails.save(file)
    is_arrow = file.endswith(".arrow")
    table = pa.ipc.open_file(file).read_all() if is_arrow else pq.read_table(file)
    head = json.loads(table.schema.metadata[b"dali_pipes"])
    head["known"] |= {"kind": "stranger:run", "function": "stranger:run"}
    table = spoil(table.replace_schema_metadata({b"dali_pipes": json.dumps(head)}))
    if is_arrow:
        with pa.ipc.new_file("strangers.arrow", table.schema) as out:
            out.write_table(table)
    else:
        pq.write_table(table, "strangers.parquet")
    try:
        assert len(dp.Manifest.load(f"strangers{Path(file).suffix}")) == len(thumbnails)
    except DaliPipesError as error:
        assert "not a manifest" in str(error)


def test_shards_and_their_index_name_no_code(thumbnails, image_folder):
    Path("shards").mkdir()
    image = next(image_folder.rglob("*.jp*g")).read_bytes()
    array = io.BytesIO()
    np.save(array, np.array([Payload()], object), allow_pickle=True)
    members = {"jpg": image, "cls": b"1", "json": b'{"function": "stranger:run"}'}
    members |= dict.fromkeys(("pyd", "pkl", "pickle", "pth", "pt"), PICKLED)
    members |= {"npy": array.getvalue(), "npz": array.getvalue()}
    with tarfile.open("shards/a.tar", "w") as tar:
        for ending, content in members.items():
            entry = tarfile.TarInfo(f"000.{ending}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    assert len(dp.Manifest.open("shards", progress=False)) == 1
    Path("shards/index.arrow").write_bytes(PICKLED)
    try:
        assert len(dp.Manifest.open("shards", progress=False)) == 1
    except DaliPipesError as error:
        assert "index.arrow" in str(error)
    for ending in ("npy", "pyd", "pkl"):
        # as the text that it is not
        with contextlib.suppress(DaliPipesError):
            dp.Manifest.open("shards", targets=dp.Targets(text=f".{ending}"), progress=False)


def test_a_parquet_file_names_no_code(image_folder):
    image = {"bytes": next(image_folder.rglob("*.jp*g")).read_bytes(), "path": "a.jpg"}
    table = pa.table({"image": [image], "label": [0]})
    names = {"label": {"names": ["a"], "_type": "stranger:run"}, "image": {"_type": "stranger.run"}}
    spoiled = spoil(table).replace_schema_metadata(
        {b"huggingface": json.dumps({"info": {"features": names}}), b"pandas": PICKLED}
    )
    pq.write_table(spoiled, "strangers.parquet")
    try:
        assert len(dp.Manifest.open("strangers.parquet", progress=False)) == 1
    except DaliPipesError as error:
        assert "strangers.parquet" in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "reference://a::file://STRANGERS",
        "simplecache::file://STRANGERS",
        "dir://::zip://::file://STRANGERS",
    ],
)
def test_a_row_of_a_manifest_chains_no_file_systems(url, folder):
    (folder / "STRANGERS").write_text("{}")
    with pytest.raises(DaliPipesError, match="several URLs in one are not read"):
        request_once(url.replace("STRANGERS", str(folder / "STRANGERS")), "info")


def test_a_saved_configuration_names_no_code(command):
    Path("config.yaml").write_text("overrides: !!python/object/apply:os.system ['touch MARK']\n")
    with pytest.raises(Exception, match="could not determine a constructor"):
        read_yaml(Path("config.yaml"))
    Path("config.pickle").write_bytes(PICKLED)
    done = command("scan", "--experimental-rerun=config.pickle")
    assert done.returncode == 2 and "an option is NAME=VALUE" in done.stderr


def test_a_result_names_no_code(tmp_path):
    save_benchmark(tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    steps = [{"name": "Augment", "function": "stranger:run"}]
    strangers = {"kind": "TrainTransform", "augment": steps}
    result["work"] |= {"transform": strangers, "loaders": {"torch": strangers, "dali": strangers}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    write_page(tmp_path)
    assert (tmp_path / "report.html").exists()


def test_the_state_of_a_loader_names_no_code(thumbnails):
    transform = dp.EvalTransform(size=32)
    with dp.build_loader(
        thumbnails, dp.TorchConfig(num_workers=0), transform=transform, batch_size=4, seed=0
    ) as loader:
        state = loader.state_dict()
        kept = state["fingerprint"]
        kept["transform"] = {"kind": "stranger:run", "augment": ["stranger:run"]}
        with pytest.raises(DaliPipesError, match="cannot resume, since these have changed"):
            loader.load_state_dict(state | {"function": "stranger:run"})
