"""Promise 2, seen in a pipeline that has run: what DALI built out of the graph, and on which device
each operator is.

DALI's default executor gives no statistics of its operators (`Pipeline.executor_statistics` is
empty). It writes the graph that it runs, with the operators that it added, as a dot file in which
the device is a color. Files are read on the CPU in every pipeline: the color of that operator is
the CPU's.
"""

import re

import pytest
import torch
from backends.test_dali_graph import WITHOUT_PIXELS

import dali_pipes as dp
from dali_pipes.backends.backend import Job
from dali_pipes.backends.dali.backend import DaliBackend, shut_down

# as the dot file names them, without their modules
READING = {name.split("__")[-1] for name in WITHOUT_PIXELS}
OPERATOR = re.compile(r'^__(\w+)\[.*color="?([^",\]]+)', re.MULTILINE)
DEVICES = ["cpu", pytest.param("gpu", marks=pytest.mark.needs_cuda)]


def has_run(manifest, transform, device, decode, folder):
    """The operators of a pipeline that has made two batches, by the color of their device, what
    held the outputs, the decoding.
    """
    config = dp.DaliConfig(device=device, num_threads=2, decode=decode, resize="dali")
    target = torch.device("cuda", 0) if device == "gpu" else torch.device("cpu")
    backend = DaliBackend(Job(transform, manifest, 8, target), config)
    pipeline = backend.pipeline(dp.Plan(manifest, transform, 8).iter_from())
    try:
        pipeline.build()
        outputs = [pipeline.run() for _ in range(2)][-1]
        kinds = [type(each).__name__ for each in outputs]
        pipeline.save_graph_to_dot_file(str(folder / "graph.dot"), use_colors=True)
    finally:
        shut_down(pipeline)
    operators = {}
    for name, color in OPERATOR.findall((folder / "graph.dot").read_text()):
        operators.setdefault(color, []).append(
            re.sub(r"^(MakeContiguous_\w+?To\w+?)_.*|_\d+$", r"\1", name)
        )
    return operators, kinds, backend.decoding


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("decode", ["auto", "whole"])
@pytest.mark.parametrize(
    "transform", [dp.TrainTransform(), dp.EvalTransform(dtype="fp16")], ids=["train", "eval"]
)
def test_the_cpu_only_reads_files(manifest, tmp_path, transform, decode, device):
    operators, (images, ids), decoding = has_run(manifest, transform, device, decode, tmp_path)
    (on_cpu,) = (names for names in operators.values() if "Read" in names)
    elsewhere = [name for names in operators.values() if names is not on_cpu for name in names]
    assert decoding.region or device == "gpu" or decode == "whole"
    decoder = ["ImageSlice"] if decoding.region else ["Image", "Slice"]
    pixels = {*decoder, "Resize", "CropMirrorNormalize", *([] if transform.training else ["Slice"])}
    assert ids == "TensorListCPU"
    if device == "cpu":
        copies = {"MakeContiguous_CpuToCpu"}
        assert set(on_cpu) <= READING | pixels | copies and pixels <= set(on_cpu) and not elsewhere
        assert images == "TensorListCPU"
    else:
        assert set(on_cpu) <= READING | {"MakeContiguous_CpuToCpu"}
        on_gpu = {name for name in elsewhere if not name.startswith(("MakeContiguous", "Copy"))}
        assert on_gpu == pixels | {"Merge"}
        assert images == "TensorListGPU"
