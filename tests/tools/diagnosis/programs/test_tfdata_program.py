"""What diagnose reads off a tf.data pipeline."""

import re

import pytest

import dali_pipes as dp

tf = pytest.importorskip("tensorflow")

from dali_pipes.tools.diagnosis.programs.tfdata import TfDataProgram  # noqa: E402
from dali_pipes.tools.diagnosis.programs.tfdata_pipeline import find_faults, read_pipeline  # noqa: E402

AUTOTUNE = tf.data.AUTOTUNE
NUMBERS = tf.data.Dataset.range(64)
KEPT = tf.data.Options()
KEPT.experimental_optimization.inject_prefetch = False
KEPT.experimental_optimization.map_parallelization = False


def augment(number):
    return tf.cast(number, tf.float32) + tf.random.uniform([])


def scale(number):
    return number * 2


def call_python(number):
    return tf.py_function(lambda given: given, [number], tf.int64)


PARALLEL = {"num_parallel_calls": AUTOTUNE}
PIPELINES = {
    "right": (
        NUMBERS.map(scale, **PARALLEL)
        .cache()
        .shuffle(64)
        .map(augment, **PARALLEL)
        .batch(8)
        .prefetch(AUTOTUNE),
        [],
    ),
    "cache after shuffle": (NUMBERS.shuffle(64).cache().batch(8), ["has the order of the first"]),
    "cache after what is random": (
        NUMBERS.map(augment, **PARALLEL).cache().batch(8),
        [r"map\(augment\), which draws random"],
    ),
    "cache after repeat": (NUMBERS.repeat(3).cache().batch(8), ["cache before repeat"]),
    "shuffle after batch": (NUMBERS.batch(8).shuffle(8), ["shuffle first"]),
    "the same order": (
        NUMBERS.shuffle(64, reshuffle_each_iteration=False).batch(8),
        ["reshuffle_each_iteration=False"],
    ),
    "one by one": (NUMBERS.map(augment).batch(8), [r"map\(augment\) makes one element at a time"]),
    "TensorFlow runs it in parallel": (NUMBERS.map(scale).batch(8), []),
    "unless it may not": (
        NUMBERS.map(scale).batch(8).with_options(KEPT).prefetch(2),
        [r"map\(scale\) makes one element"],
    ),
    "no prefetch": (NUMBERS.batch(8).with_options(KEPT), ["ends without prefetch"]),
    "Python": (NUMBERS.map(call_python, **PARALLEL).batch(8), [r"map\(call_python\) calls Python"]),
    "files": (
        NUMBERS.interleave(lambda n: tf.data.Dataset.from_tensors(n)),
        [r"interleave\(.*\) makes one element at a time"],
    ),
}


@pytest.mark.parametrize(
    ("dataset", "in_flight"),
    [
        (NUMBERS.batch(8), 2),
        (NUMBERS.batch(8).with_options(KEPT), 0),
        (NUMBERS.batch(8).with_options(KEPT).prefetch(2), 2),
        (NUMBERS.batch(8).prefetch(2).with_options(KEPT), 2),
    ],
)
def test_batches_in_flight_wherever_the_options_are(dataset, in_flight):
    assert TfDataProgram(dataset).in_flight == in_flight


@pytest.mark.parametrize("kind", PIPELINES)
def test_what_is_wrong_is_named_and_nothing_else(kind):
    dataset, expected = PIPELINES[kind]
    found = find_faults(dataset)
    assert len(found) == len(expected), found
    for message, pattern in zip(found, expected, strict=True):
        assert re.search(pattern, message)


def test_the_stages_are_read_from_the_source_on():
    assert [each.kind for each in read_pipeline(PIPELINES["right"][0])] == [
        "range", "map", "cache", "shuffle", "map", "batch", "prefetch"
    ]  # fmt: skip


def test_a_serial_map_is_tried_in_parallel_in_a_pipeline_that_is_otherwise_the_same():
    dataset = (
        NUMBERS.shuffle(64).map(augment).batch(8, drop_remainder=True).repeat(2).take(5).prefetch(1)
    )
    fix = TfDataProgram(dataset).other_workers(None, None)[0]
    assert fix.what == "map(augment): num_parallel_calls=tf.data.AUTOTUNE"
    stages = read_pipeline(fix.program._dataset)
    assert [each.kind for each in stages] == [
        each.kind for each in read_pipeline(dataset)
    ] and stages[2].is_parallel
    assert fix.program.epoch == 5 and find_faults(fix.program._dataset) == []


def test_a_pipeline_that_cannot_be_built_again_is_advised_only():
    dataset = NUMBERS.map(augment).enumerate().batch(8)
    assert TfDataProgram(dataset).other_workers(None, None)[0].program is None


@pytest.mark.slow
def test_a_data_set_is_diagnosed(capsys):
    def heavy(number):
        square = tf.random.uniform([128, 128])
        for _ in range(8):
            square = tf.linalg.matmul(square, square) * 0.01
        return tf.cast(number, tf.float32) + tf.reduce_sum(square)

    found = dp.diagnose(
        NUMBERS.shuffle(64).cache().map(heavy).batch(8), lambda batch: None, seconds=0.1, rounds=1
    )
    told = capsys.readouterr().err
    assert "wrong: cache() comes after shuffle()" in told and len(found.remarks) == 2
    assert found.figures.together > 0 and found.verdict.name != "model-bound"
