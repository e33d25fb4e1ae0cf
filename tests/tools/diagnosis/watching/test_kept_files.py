"""Whatever a program writes while its loop is examined, the files that it had stay as they were."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# each writes the value `x` into the folder `to`, in a way of its own, twice over with other values
WRITERS = {
    "open": "open(to / 'a', 'w').write(str(x))",
    "appended": "open(to / 'a', 'a').write(str(x))",
    "in place": "(to / 'a').touch(); f = open(to / 'a', 'r+'); f.write(str(x)); f.close()",
    "Path.write_text": "(to / 'a').write_text(str(x))",
    "open before": "bound_open(to / 'a', 'w').write(str(x))",
    "os.open": "os.write(os.open(to / 'a', os.O_WRONLY | os.O_CREAT | os.O_TRUNC), b'%d' % x)",
    "io.FileIO": "io.FileIO(str(to / 'a'), 'w').write(b'%d' % x)",
    "through a link": "(to / 'b').exists() or os.symlink('a', to / 'b'); "
    "open(to / 'b', 'w').write(str(x))",
    "os.truncate": "(to / 'a').exists() or open(to / 'a', 'w').write('12345'); "
    "os.truncate(to / 'a', x)",
    "gzip, bz2, lzma": "[each.open(to / each.__name__, 'w').write(b'%d' % x)"
    " for each in (gzip, bz2, lzma)]",
    "zipfile": "zipfile.ZipFile(to / 'a', 'w').writestr('x', str(x))",
    "os.replace": "open(to / 'new', 'w').write(str(x)); os.replace(to / 'new', to / 'a')",
    "shutil.move": "open(to / 'new', 'w').write(str(x)); shutil.move(to / 'new', to / 'a')",
    "shutil.copy": "open(to.parent / 'new', 'w').write(str(x)); shutil.copy(to.parent / 'new', to)",
    "rotation": "os.path.exists(to / 'a') and os.replace(to / 'a', to / 'b'); "
    "open(to / 'a', 'w').write(str(x))",
    "removed": "(to / 'a').exists() and os.remove(to / 'a'); (to / 'a').write_text(str(x))",
    "folder removed": "shutil.rmtree(to); os.makedirs(to); (to / 'a').write_text(str(x))",
    "a temporary folder": "d = tempfile.mkdtemp(dir=to.parent); "
    "Path(d, 'a').write_text(str(x)); os.replace(Path(d, 'a'), to / 'a'); shutil.rmtree(d)",
    "pickle": "pickle.dump(x, open(to / 'a', 'wb'))",
    "numpy": "np.save(to / 'a.npy', x); np.savez(to / 'a.npz', x=x); np.array(x).tofile(to / 'b')",
    "np.memmap": "np.memmap(to / 'a', mode='w+', shape=4)[:] = x",
    "torch.save": "torch.save(x, to / 'a')",
    "torch.save before": "bound_save(x, str(to / 'ä')); bound_save(x, open(to / 'b', 'wb'))",
    "torch.save and os.replace": "torch.save(x, to / 'new'); os.replace(to / 'new', to / 'a')",
    "torch.save, old format": "torch.save(x, to / 'a', _use_new_zipfile_serialization=False)",
    "torch.jit.save": "torch.jit.save(torch.jit.script(layer(x)), to / 'a')",
    "torch.export": "torch.export.save(torch.export.export(layer(x), (torch.ones(1),)),"
    " to / 'a.pt2')",
    "torch.distributed.checkpoint": "dcp.save({'x': torch.tensor(x)}, checkpoint_id=to / 'dcp')",
    "safetensors": "save_file({'x': torch.tensor(x)}, to / 'a'); save_model(layer(x), to / 'b')",
    "h5py": "h5py.File(to / 'a', 'w')['x'] = x",
    "transformers": "network.config.x = x; network.weight.data[:] = x; network.save_pretrained(to)",
    "accelerate": "model.weight.data[:] = x; accelerator.save_state(to / 'state')",
    "Lightning": "fabric.save(to / 'a', {'x': x})",
}
HEAVY = {"h5py", "transformers", "accelerate", "Lightning"}
START = """
import sys
from pathlib import Path
from dali_pipes.tools.diagnosis.watching.imports import install_hooks
from dali_pipes.tools.diagnosis.watching.kept_files import KeptFiles

examining = False
to, aside = Path(sys.argv[1]), sys.argv[2]
files = KeptFiles(Path(aside), lambda: examining)
files.install()
install_hooks(files.hooks())

import bz2, contextlib, gzip, io, lzma, os, pickle, shutil, tempfile, warnings, zipfile
from builtins import open as bound_open
warnings.simplefilter("ignore")
"""
IMPORTS = """
import numpy as np, torch, torch.distributed.checkpoint as dcp
from safetensors.torch import save_file, save_model
from torch import save as bound_save

class Layer(torch.nn.Module):
    def __init__(self, x):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([float(x)]))

    def forward(self, batch):
        return batch * self.weight

layer = Layer
"""
HEAVY_IMPORTS = """
import h5py
from accelerate import Accelerator
from lightning.fabric import Fabric
from transformers import PretrainedConfig, PreTrainedModel

class Network(PreTrainedModel):
    config_class = PretrainedConfig
    def __init__(self, config):
        super().__init__(config)
        self.weight = torch.nn.Parameter(torch.zeros(1))

network = Network(PretrainedConfig())
accelerator, fabric = Accelerator(cpu=True), Fabric(accelerator="cpu")
model = accelerator.prepare(Layer(0))
"""
RUN = """
def content(folder):
    return {str(each): each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file()}

above, writers, changed = to, eval(sys.argv[3]), []
for name, code in writers.items():
    to = above / str(len(list(above.iterdir()))) / "kept"
    to.mkdir(parents=True)
    x = 1
    exec(code, globals())
    before = content(to)
    assert before, name
    for x in (2, 3):
        examining = True
        exec(code, globals())
        examining = False
        after = content(to)
        changed += [name] * (before != after and name not in changed)
    said = any(each.is_relative_to(to) for each in files.kept)
    print(name, "is kept" if said else "IS NOT SAID")
print("changed:", changed)
"""


def run_child(tmp_path, code: str, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    (tmp_path / "files").mkdir()
    (tmp_path / "aside").mkdir()
    (tmp_path / "program.py").write_text(code)  # torch.jit reads its source
    command = [
        sys.executable,
        "program.py",
        str(tmp_path / "files"),
        str(tmp_path / "aside"),
        *words,
    ]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def assert_kept(tmp_path, names: set[str], imports: str) -> None:
    writers = {name: WRITERS[name] for name in names}
    said = run_child(tmp_path, START + imports + RUN, repr(writers))
    assert said.splitlines()[-1] == "changed: []", said
    assert "IS NOT SAID" not in said


OF_TORCH = {
    name
    for name, code in WRITERS.items()
    if any(word in code for word in ("np.", "torch", "layer", "bound_save", "dcp"))
}


def test_what_python_writes_does_not_change_a_file_that_was_there(tmp_path):
    assert_kept(tmp_path, WRITERS.keys() - OF_TORCH - HEAVY, "")


@pytest.mark.slow
def test_what_pytorch_and_its_libraries_write_does_not_change_a_file_that_was_there(tmp_path):
    assert_kept(tmp_path, OF_TORCH | HEAVY, IMPORTS + HEAVY_IMPORTS)


@pytest.mark.slow
def test_what_tensorflow_and_keras_write_does_not_change_a_file_that_was_there(tmp_path):
    writers = {
        "Checkpoint": "v.assign(x); saved = tf.train.Checkpoint(v=v).save(to / 'a')",
        "write": "v.assign(x); tf.train.Checkpoint(v=v).write(str(to / 'a'))",
        "manager": "v.assign(x); tf.train.CheckpointManager("
        "tf.train.Checkpoint(v=v), to, max_to_keep=1).save()",
        "saved model": "m = tf.Module(); m.v = tf.Variable(x); tf.saved_model.save(m, str(to))",
        "keras": "k.set_weights([np.full(w.shape, x) for w in k.get_weights()]); "
        "k.save(to / 'a.keras'); k.save_weights(to / 'a.weights.h5')",
    }
    imports = (
        "import keras, numpy as np, tensorflow as tf\nv = tf.Variable(0)\n"
        "k = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
    )
    said = run_child(tmp_path, START + imports + RUN, repr(writers))
    assert said.splitlines()[-1] == "changed: []" and "IS NOT SAID" not in said, said


def test_a_program_reads_what_it_wrote_and_its_new_files_are_told(tmp_path):
    code = """
(to / "old").write_text("before")
examining = True
(to / "old").write_text("after")
assert (to / "old").read_text() == "after" and (to / "old").stat().st_size == 5
os.replace(to / "old", to / "moved")
assert (to / "moved").read_text() == "after"
(to / "new").write_text("made")
(to / "new").write_text("made again")
(to / "gone").write_text("made")
(to / "gone").unlink()
(to / "folder").mkdir()
(to / "folder" / "b").write_text("made")
(to / "folder").rename(to / "renamed")
examining = False
assert sorted(os.listdir(to)) == ["new", "old", "renamed"]
assert (to / "old").read_text() == "before" and (to / "new").read_text() == "made again"
assert files.made == [to / "new", to / "renamed" / "b"], files.made
assert files.kept == [to / "moved", to / "old"], files.kept
print(files.describe())
"""
    said = run_child(tmp_path, START + code)
    assert "nothing was changed there" in said and str(Path("files", "old")) in said


def test_outside_the_examined_loop_nothing_is_held_back(tmp_path):
    code = """
(to / "a").write_text("1")
(to / "a").write_text("2")
os.replace(to / "a", to / "b")
assert (to / "b").read_text() == "2" and not files.kept and not files.made
assert files.describe() == ""
assert pickle.loads(pickle.dumps(open)) is open and isinstance(open(to / "b", "rb", 0), io.FileIO)
examining = True
try:
    open(to / "b", "x")
    raise AssertionError
except FileExistsError:
    pass
try:
    open(to / "none" / "b", "w")
    raise AssertionError
except FileNotFoundError:
    pass
"""
    run_child(tmp_path, START + code)
