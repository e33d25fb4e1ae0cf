"""Promise 2, seen in the graph: with a GPU the CPU reads files, looks at headers, and does nothing
else. Needs no GPU.
"""

import re
import warnings

import gast
import numpy as np
import pytest
import torch
from make_shards import tar_shards
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.pipeline import OperatorConcurrency

import dali_pipes as dp
from dali_pipes.backends.backend import Job
from dali_pipes.backends.dali import decoding
from dali_pipes.backends.dali.backend import DaliBackend
from dali_pipes.backends.dali.decoding import preallocation
from dali_pipes.backends.dali.graph import _check_header
from dali_pipes.measure.arms import DaliNativeConfig
from dali_pipes.measure.arms.native_loader import DaliNativeBackend

# What the CPU may do where a GPU decodes: bring the plan's numbers and the bytes, parse headers,
# and part the samples of a batch among the branches. None of these sees a pixel.
WITHOUT_PIXELS = {
    "ExternalSource",
    "io__file__Read",
    "PeekImageShape",
    "Reshape",
    "_ArithmeticGenericOp",
    "_conditional__Split",
}

POLICIES = {
    "TrivialAugmentWide": ["TrivialAugmentWide"],
    "RandAugment": ["RandAugment"],
    "AutoAugment": ["AutoAugment"],
    "SimCLR": [
        {"name": "ColorJitter", "brightness": 0.8, "contrast": 0.8, "saturation": 0.8, "hue": 0.2},
        "RandomGrayscale",
        "GaussianBlur",
    ],
    "rotation": ["RandomRotation"],
}


def gpu_pipeline(manifest, transform, **options):
    """Without the JPEG engine, which has decoders of its own, unless the options ask for it."""
    plan = dp.Plan(manifest, transform, 8)
    config = dp.DaliConfig(device="gpu", **{"num_threads": 2, "exact": True} | options)
    backend = DaliBackend(Job(transform, manifest, 8, torch.device("cuda", 0)), config)
    pipeline = backend.pipeline(plan.iter_from())
    pipeline._build_graph()
    return pipeline


@pytest.fixture(autouse=True)
def sound_libraries(monkeypatch):
    """Those that regions are decoded with on a GPU, whichever are installed."""
    monkeypatch.setattr(
        decoding, "installed_versions", lambda: decoding.Versions((0, 8, 0), (13, 2, 0))
    )


def upstream(operator) -> list:
    """The operators that this one needs, each once."""
    found, queue = [], [operator]
    while queue:
        for edge in queue.pop().inputs:
            if edge.source not in found:
                found.append(edge.source)
                queue.append(edge.source)
    return found


def kind(operator) -> str:
    return getattr(operator._op, "schema_name", "ExternalSource")


def device(operator) -> str:
    return getattr(operator._op, "device", "cpu")


@pytest.mark.parametrize(
    "transform",
    [
        dp.TrainTransform(),
        dp.EvalTransform(),
        dp.TrainTransform(dtype="uint8"),
        dp.EvalTransform(dtype="fp16"),
    ],
)
@pytest.mark.parametrize("decode", ["region", "whole"])
def test_the_cpu_only_reads_files(manifest, transform, decode):
    pipeline = gpu_pipeline(manifest, transform, decode=decode)
    images, _ = pipeline._graph_outputs
    assert images.device == "gpu"
    path = [*upstream(images.source), images.source]
    assert {kind(each) for each in path if device(each) == "cpu"} <= WITHOUT_PIXELS
    mixed = [kind(operator) for operator in path if device(operator) == "mixed"]
    assert mixed == ["decoders__ImageSlice" if decode == "region" else "decoders__Image"]
    on_gpu = sorted(kind(operator) for operator in path if device(operator) == "gpu")
    slices = ["Slice"] * ((decode == "whole") + (not transform.training))
    assert on_gpu == ["CropMirrorNormalize", "Resize", *slices]


@pytest.mark.parametrize(
    ("transform", "operators"),
    [
        (dp.TrainTransform(size=(32, 24), interpolation="bicubic"), ["Resize"]),
        (dp.TrainTransform(vertical_flip=0.5), ["Flip", "Resize"]),
        (dp.RandomCropTransform(), []),
        (dp.RandomCropTransform(pad_if_needed=True), ["Slice"]),
        (dp.RandomCropTransform(size=(9, 8), resize=(9, 8)), ["Resize"]),
        (dp.RandomCropTransform(resize=40, vertical_flip=0.5), ["Flip", "Resize", "Slice"]),
        (dp.EvalTransform(resize=None), ["Slice"]),
        (dp.EvalTransform(size=(9, 8), resize=(9, 8)), ["Resize"]),
        (dp.LetterboxTransform(), ["Resize", "Slice"]),
        (dp.ShortestSizeTransform(), ["Resize", "Slice"]),
    ],
)
def test_the_graph_has_only_what_the_transform_needs(manifest, transform, operators):
    images, _ = gpu_pipeline(manifest, transform)._graph_outputs
    path = [*upstream(images.source), images.source]
    assert sorted(kind(operator) for operator in path if device(operator) == "gpu") == [
        "CropMirrorNormalize",
        *operators,
    ]


def test_an_image_is_decoded_once_for_all_of_its_views(manifest):
    transform = dp.ViewsTransform(
        views={
            "global": {"count": 2},
            "local": {"count": 2, "size": 96, "augment": ["RandomSolarize"]},
        }
    )
    *views, _ = gpu_pipeline(manifest, transform)._graph_outputs
    assert len(views) == 4 and {each.device for each in views} == {"gpu"}
    every = [operator for images in views for operator in [images.source, *upstream(images.source)]]
    path = [each for at, each in enumerate(every) if each not in every[:at]]
    assert [kind(operator) for operator in path if device(operator) == "mixed"] == [
        "decoders__ImageSlice"
    ]
    assert {kind(each) for each in path if device(each) == "cpu"} <= WITHOUT_PIXELS
    on_gpu = [kind(operator) for operator in path if device(operator) == "gpu"]
    assert [on_gpu.count(each) for each in ("Slice", "Resize", "CropMirrorNormalize")] == [4, 4, 4]


@pytest.mark.parametrize("policy", POLICIES)
def test_before_augmentation_a_graph_ends_with_bytes(manifest, policy):
    """The graph is that of uint8 images: PyTorch augments, erases and normalizes after it."""
    found = []
    for transform in (
        dp.TrainTransform(augment=[*POLICIES[policy], "RandomErasing"]),
        dp.TrainTransform(dtype="uint8"),
    ):
        images = gpu_pipeline(manifest, transform)._graph_outputs[0]
        assert images.device == "gpu"
        operators = [*upstream(images.source), images.source]
        found.append(sorted((device(each), kind(each)) for each in operators))
    assert found[0] == found[1]


def test_float16_is_erased_on_the_gpu_and_nothing_is_added_on_the_cpu(manifest):
    """DALI's GPU operator erases no float16, so the graph erases int16: test_dali_kernels.py."""
    found = {}
    for dtype in ("fp32", "fp16"):
        images = gpu_pipeline(
            manifest, dp.TrainTransform(dtype=dtype, augment=["RandomErasing"])
        )._graph_outputs[0]
        assert images.device == "gpu"
        found[dtype] = [
            (device(operator), kind(operator))
            for operator in [images.source, *upstream(images.source)]
        ]
    assert sorted(found["fp16"]) == sorted([*found["fp32"], *[("gpu", "Reinterpret")] * 2])


def test_out_of_shards_the_bytes_come_in_with_the_plan(manifest, tmp_path):
    shards = dp.Manifest.open(tar_shards(manifest, tmp_path), progress=False)
    pipeline = gpu_pipeline(shards, dp.TrainTransform())
    images, _ = pipeline._graph_outputs
    assert images.device == "gpu"
    on_cpu = {kind(each) for each in upstream(images.source) if device(each) == "cpu"}
    assert on_cpu <= WITHOUT_PIXELS - {"io__file__Read"}


def test_the_decoder_waits_for_the_header(manifest):
    pipeline = gpu_pipeline(manifest, dp.TrainTransform())
    decoder = next(operator for operator in pipeline._ops if kind(operator).startswith("decoders"))
    assert "PeekImageShape" in [kind(operator) for operator in upstream(decoder)]
    bytes_in = decoder.inputs[0].source
    assert kind(bytes_in) == "Reshape"


@pytest.mark.parametrize("decode", ["region", "whole"])
@pytest.mark.parametrize(("num_threads", "engines"), [(4, 1), (8, 2)])
def test_each_route_has_a_decoder_of_its_own_and_all_work_at_once(
    manifest, decode, num_threads, engines
):
    options = {"num_threads": num_threads, "decode": decode, "cpu_share": 0.2}
    pipeline = gpu_pipeline(manifest, dp.TrainTransform(), exact=False, **options)
    decoders = [operator for operator in pipeline._ops if kind(operator).startswith("decoders")]
    assert sorted(map(device, decoders)) == ["cpu", *["mixed"] * (1 + engines)]
    # those of the engine take a whole batch of it; the main one never uses it
    on_gpu = [each for each in decoders if device(each) == "mixed"]
    loads = sorted(number_of(each, "hw_decoder_load") for each in on_gpu)
    assert loads[0] == 0 and all(load >= 1 for load in loads[1:])

    # memory is allocated for load × 8 images of the hinted size
    area = np.prod(preallocation(dp.DaliConfig(), manifest.sizes))
    for decoder in on_gpu:
        load = number_of(decoder, "hw_decoder_load")
        height, width = (
            number_of(decoder, f"preallocate_{side}_hint") for side in ("height", "width")
        )
        assert height * width >= 1 and height * width * load <= 1.5 * area
    assert pipeline.concurrency == OperatorConcurrency.FULL

    # each gets bytes whose header has been checked, and nothing that the CPU decoded stays there
    for decoder in decoders:
        kinds = [kind(operator) for operator in upstream(decoder)]
        assert "PeekImageShape" in kinds and kind(decoder.inputs[0].source) == "_conditional__Split"
    images, _ = pipeline._graph_outputs
    merges = [each for each in pipeline._ops if kind(each) == "_conditional__Merge"]
    assert images.device == "gpu" and {device(each) for each in merges} == {"gpu"}


def number_of(decoder, option):
    return float(re.search(rf"{option}: ([\d.]+)", str(decoder.spec))[1])


def test_with_one_route_there_is_one_decoder(manifest):
    pipeline = gpu_pipeline(manifest, dp.TrainTransform(), hw_decoder_load=0, exact=False)
    (decoder,) = (each for each in pipeline._ops if kind(each).startswith("decoders"))
    assert number_of(decoder, "hw_decoder_load") == 0 and pipeline.concurrency is None


SIZE = (48, 64)


@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def _checked(header, length):
    content = np.arange(length, dtype=np.uint8)
    found, encoded = (fn.external_source(iter([[each]])) for each in (header, content))
    return _check_header(encoded, found, types.Constant(np.array([*SIZE, 0], np.int32)))


@pytest.mark.parametrize("components", [1, 2, 3, 4])
def test_bytes_of_the_scanned_size_are_let_through(components):
    (encoded,) = _checked(np.array([*SIZE, components]), 48 * 64).run()
    assert np.array_equal(encoded.at(0), np.arange(48 * 64, dtype=np.uint8))


@pytest.mark.parametrize("components", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 3000, 48 * 64 * 3, 4097])
@pytest.mark.parametrize(
    "size", [(49, 64), (48, 65), (47, 63), (64, 48), (1, 1), (0, 64), (96, 32), (2**31, 64)]
)
def test_bytes_of_another_size_are_not(size, length, components):
    with pytest.raises(RuntimeError, match="reshape"):
        _checked(np.array([*size, components]), length).run()


def test_dali_puts_out_what_can_be_rounded_once(manifest):
    """It has no bfloat16; images that came as fp16 would be rounded twice."""
    put_out = {
        "fp32": types.DALIDataType.FLOAT,
        "fp16": types.DALIDataType.FLOAT16,
        "bf16": types.DALIDataType.FLOAT,
    }
    for dtype, expected in put_out.items():
        images, _ = gpu_pipeline(manifest, dp.TrainTransform(dtype=dtype))._graph_outputs
        assert kind(images.source) == "CropMirrorNormalize"
        assert f"\n    dtype: {int(expected)}\n" in str(images.source.spec)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("jpeg_fancy_upsampling", False, "jpeg_fancy_upsampling: False"),
        ("hybrid_huffman_threshold", 1234, "hybrid_huffman_threshold: 1234"),
        ("preallocate_width_hint", 6000, "preallocate_width_hint: 6000"),
        ("preallocate_height_hint", 5000, "preallocate_height_hint: 5000"),
        ("device_memory_padding", 12345, "device_memory_padding: 12345"),
    ],
)
@pytest.mark.parametrize("decode", ["region", "whole"])
def test_decoder_options_reach_the_decoder(manifest, option, value, expected, decode):
    usual = {"decode": decode}
    spec = decoder_spec(gpu_pipeline(manifest, dp.TrainTransform(), **usual | {option: value}))
    assert expected in spec and "adjust_orientation: False" in spec
    assert expected not in decoder_spec(gpu_pipeline(manifest, dp.TrainTransform(), **usual))


@pytest.mark.parametrize(("cpus", "affine"), [(None, True), ("gpu", True), ("0", False)])
def test_the_decoder_pins_its_threads_unless_the_cpus_are_given(manifest, cpus, affine):
    """It pins them to the CPUs nearest to the GPU, of which a list from another NUMA node has
    none.
    """
    spec = decoder_spec(gpu_pipeline(manifest, dp.TrainTransform(), cpus=cpus))
    assert f"affine: {affine}" in spec


def decoder_spec(pipeline):
    (decoder,) = (each for each in pipeline._ops if kind(each).startswith("decoders"))
    return str(decoder.spec)


def test_memory_is_allocated_for_almost_all_images(manifest):
    """For one image, and not for the height of one and the width of another."""
    many = np.array([[4000, 6000]] * 500 + [[6000, 4000]] * 499 + [[9000, 9000]])
    assert sorted(preallocation(dp.DaliConfig(), many)) == [4000, 6000]
    assert preallocation(dp.DaliConfig(preallocate_height_hint=7), many)[0] == 7
    assert preallocation(dp.DaliConfig(), many[:0]) == (1, 1)
    height, width = preallocation(dp.DaliConfig(), manifest.sizes)
    spec = decoder_spec(gpu_pipeline(manifest, dp.TrainTransform()))
    assert (
        f"preallocate_height_hint: {height}" in spec and f"preallocate_width_hint: {width}" in spec
    )


@pytest.mark.parametrize(
    ("nvimgcodec", "decoder"), [((0, 8, 0), "ImageRandomCrop"), ((0, 9, 0), "Image")]
)
def test_the_yardstick_avoids_regions_that_crash(manifest, monkeypatch, nvimgcodec, decoder):
    monkeypatch.setattr(
        decoding, "installed_versions", lambda: decoding.Versions(nvimgcodec, (12, 4, 0))
    )
    config = DaliNativeConfig(device="gpu", num_threads=2)
    backend = DaliNativeBackend(
        Job(dp.TrainTransform(), manifest, 8, torch.device("cuda", 0)), config
    )
    pipeline = backend.pipeline(iter(()))
    pipeline._build_graph()
    (found,) = (operator for operator in pipeline._ops if kind(operator).startswith("decoders"))
    assert kind(found) == f"decoders__{decoder}" and device(found) == "mixed"
    assert "jpeg_fancy_upsampling: False" in str(found.spec)


def test_a_graph_is_built_where_warnings_are_errors(manifest, monkeypatch):
    """Python 3.13 warns of gast, by which DALI converts the conditions of a graph."""
    original = gast.ast3.GAstToAst3.generic_visit

    def warn(self, node):
        text = f"{type(node).__name__}.__init__ got an unexpected keyword argument '___pyct_anno'"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return original(self, node)

    monkeypatch.setattr(gast.ast3.GAstToAst3, "generic_visit", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gpu_pipeline(manifest, dp.TrainTransform(augment=["TrivialAugmentWide"]))
