"""Numbers at every boundary: what a user may pass is checked at once, and NumPy's and PyTorch's
numbers become Python's.
"""

import ast
import inspect
import io
import json
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dali_pipes as dp
from dali_pipes.backends.registry import list_backends
from dali_pipes.checks import check_int, check_number, to_python
from dali_pipes.cli.conf import JOBS
from dali_pipes.measure.arms import ARMS, SyntheticConfig
from dali_pipes.options import _read_annotation, check_arguments
from dali_pipes.plan.sampling import SAMPLINGS
from dali_pipes.plan.steps.lists import POLICIES
from dali_pipes.plan.steps.policies import RandomErasing
from dali_pipes.plan.transforms import TRANSFORMS

PACKAGE = Path(dp.__file__).parent
POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
HUGE, NOT_A_NUMBER = 10**30, float("nan")
BAD = {
    int: (
        4.5,
        4.0,
        "4",
        b"4",
        NOT_A_NUMBER,
        float("inf"),
        True,
        HUGE,
        -HUGE,
        np.float64(4),
        torch.tensor(4.0),
        [4],
        object(),
    ),
    float: (
        "0.5",
        NOT_A_NUMBER,
        float("inf"),
        -float("inf"),
        True,
        10**400,
        np.float32("nan"),
        [0.5],
        1j,
        object(),
    ),
    bool: ("False", 2, 0.0, NOT_A_NUMBER, [True], object()),
}
WRAPPED = (np.asarray, lambda value: np.asarray(value)[()], torch.tensor)
NEEDED = {  # options without which there is nothing to check
    "Augment": {"function": abs},
    "Weighted": {"weights": "loss"},
    "Schedule": {"schedule": {0: "uniform"}},
    "ColorJitter": {"brightness": 0.5},
    "ViewsTransform": {"views": {"global": {"count": 2}}},
    "PrepareConfig": {"out": "/x", "resize": 64},
    "BenchmarkConfig": {"loaders": {"dali": dp.DaliConfig()}, "arms": ["dali"]},
}
# methods of a manifest that are called for every image; they look at the id themselves, in less
# time
OF_EVERY_IMAGE = {
    "extent",
    "mask_extent",
    "mask_size",
    "name",
    "relative_name",
    "path",
    "read",
}
# of a transform or a plan, called for every batch by loaders with what the plan has counted
OF_EVERY_BATCH = {"at", "size_at", "batch_offset", "take_sizes", "draw"}
# what plans and loaders ask options for, with numbers that are checked already
OF_OPTIONS = {"order", "orders", "on_cores"}


def option_classes():
    """Every dataclass of options that a user can make, or that a command line makes; those within
    others too.
    """
    public = [getattr(dp, name) for name in dp.__all__]
    found = [each for each in public if inspect.isclass(each) and is_dataclass(each)]
    found.remove(dp.Manifest)
    found += [
        *TRANSFORMS.values(),
        *SAMPLINGS.values(),
        *POLICIES.values(),
        *list_backends().values(),
        *(arm.config for arm in ARMS),
    ]
    todo = [*found, *JOBS.values()]
    while todo:
        each = todo.pop()
        if each is dp.Manifest:  # what is known of images is no option
            continue
        found.append(each)
        todo += [one.type for one in fields(each) if is_dataclass(one.type)]
    return sorted(
        {each for each in found if numbers_of(each) and not inspect.isabstract(each)},
        key=lambda each: each.__name__,
    )


def numbers_of(kind):
    """Arguments that are numbers, with the kind of each; not those of what a loader makes, which
    are tensors.
    """
    kinds = {each.name: _read_annotation(each.type) for each in fields(kind) if each.init}
    return {name: found[0] for name, found in kinds.items() if found and found[0] in BAD}


def made(kind, **options):
    needed = NEEDED.get(kind.__name__, {})
    if kind is dp.Plan:
        needed = {
            "manifest": range(9),
            "transform": dp.EvalTransform(size=8, resize=8),
            "batch_size": 3,
        }
    return kind(**needed | options)


CLASSES = option_classes()
EACH = [(kind, name, number) for kind in CLASSES for name, number in numbers_of(kind).items()]


def test_the_classes_are_found():
    names = {kind.__name__ for kind in CLASSES}
    assert {
        "TrainTransform",
        "RandomErasing",
        "Rank",
        "MixUp",
        "Windows",
        "TorchConfig",
        "TrainConfig",
        "DataConfig",
    } <= names
    assert len(CLASSES) > 50


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_options_refuse_what_is_no_such_number_in_one_line(kind):
    for name, number in numbers_of(kind).items():
        for value in BAD[number]:
            with pytest.raises(dp.ConfigError, match=name) as raised:
                made(kind, **{name: value})
            assert "\n" not in str(raised.value) and len(str(raised.value)) < 300, raised.value


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_options_take_the_numbers_of_numpy_and_torch(kind):
    options = (
        {} if kind is dp.Plan else {name: getattr(made(kind), name) for name in numbers_of(kind)}
    )
    given = {name: value for name, value in options.items() if isinstance(value, (int, float))}
    for wrap in WRAPPED:
        taken = made(kind, **{name: wrap(value) for name, value in given.items()})
        for name, value in given.items():
            assert type(getattr(taken, name)) in (int, float, bool) and getattr(
                taken, name
            ) == pytest.approx(value), name


def functions():
    """What is public and takes numbers or paths: functions of the package, and methods of its
    classes.
    """
    for name in dp.__all__:
        each = getattr(dp, name)
        if inspect.isfunction(each):
            yield name, each
        elif inspect.isclass(each) and each.__module__.startswith("dali_pipes"):
            own = [base for base in each.__mro__ if base.__module__.startswith("dali_pipes")]
            methods = {name: value for base in reversed(own) for name, value in vars(base).items()}
            for method, value in methods.items():
                function = getattr(value, "__func__", value)
                # others have tests above
                is_made = method == "__init__" and each is not dp.Loader and not is_dataclass(each)
                of_users = is_made or not method.startswith("_")
                if inspect.isfunction(function) and of_users:
                    yield f"{name}.{method}", function


def checked_arguments(function):
    kinds = {
        name: _read_annotation(each.annotation)
        for name, each in inspect.signature(function).parameters.items()
    }
    return {name: kind[0] for name, kind in kinds.items() if kind}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        pytest.param(each, kinds, id=name)
        for name, each in functions()
        if (kinds := checked_arguments(each))
    ],
)
def test_public_functions_check_before_anything_else(function, arguments):
    of_options = function.__name__ in OF_OPTIONS and not function.__qualname__.startswith("Plan.")
    if of_options or function.__name__ in OF_EVERY_IMAGE | OF_EVERY_BATCH:
        return
    every = inspect.signature(function).parameters
    needed = {
        name: None
        for name, each in every.items()
        if each.default is inspect.Parameter.empty and name not in ("self", "cls")
    }
    for name, kind in arguments.items():
        for value in BAD.get(kind, (5, b"/x", ["/x"], torch.nn.Identity())):
            with pytest.raises(dp.ConfigError, match=rf"\b{name} is ") as raised:
                values = {**{each: good(arguments.get(each)) for each in needed}, name: value}
                first = [each for each, parameter in every.items() if parameter.kind is POSITIONAL]
                first = [each for each in first if each in values]
                function(
                    *(["self"] if "self" in every else []),
                    *(["cls"] if "cls" in every else []),
                    *(values.pop(each) for each in first),
                    **values,
                )
            assert "\n" not in str(raised.value)


@pytest.mark.parametrize("method", sorted(OF_EVERY_IMAGE))
def test_an_id_of_no_sample_is_refused(thumbnails, method):
    for wrap in (int, *WRAPPED):
        getattr(thumbnails, method)(wrap(36))
    for value in (-1, 37, *BAD[int]):
        with pytest.raises(
            dp.ConfigError, match=r"sample_id is .*; it takes whole numbers from 0 to 36"
        ):
            getattr(thumbnails, method)(value)


def good(kind):
    return {int: 1, float: 0.5, bool: True, Path: "/no/such/folder"}.get(kind)


@pytest.mark.parametrize(
    "module", sorted((PACKAGE / "adapters").rglob("*.py")), ids=lambda file: file.stem
)
def test_public_functions_of_adapters_are_checked(module):
    """By their text: they import libraries that are optional."""
    tree = ast.parse(module.read_text())
    classes = [
        each
        for each in tree.body
        if isinstance(each, ast.ClassDef) and not each.name.startswith("_")
    ]
    for function in [
        each
        for place in (tree, *classes)
        for each in place.body
        if isinstance(each, ast.FunctionDef)
    ]:
        given = [*function.args.args, *function.args.kwonlyargs]
        public = not function.name.startswith("_") or function.name == "__init__"
        needs = [
            each.arg
            for each in given
            if each.annotation and _read_annotation(ast.unparse(each.annotation))
        ]
        if public and needs and module.parent == PACKAGE / "adapters":
            assert any(
                "check_arguments" in ast.unparse(each) for each in function.decorator_list
            ), (function.name, needs)


def test_plain():
    exact = [1, 1.5, True, "text", None]
    given = [np.int64(1), np.float32(1.5), np.bool_(True), np.str_("text"), None]
    assert [(type(each), each) for each in to_python(given)] == [
        (type(each), each) for each in exact
    ]
    assert to_python((np.array(2), torch.tensor(3))) == (2, 3) and to_python(
        np.array([[1, 2]])
    ) == [[1, 2]]
    assert type(to_python(np.longdouble(1.5))) is float and to_python(Fraction(1, 2)) == 0.5
    assert (
        to_python({np.int64(3): [np.float64(0.5)]}) == {3: [0.5]}
        and type(next(iter(to_python({np.int64(3): 1})))) is int
    )
    kept = object(), timedelta(1), torch.empty((), device="meta"), np.float64
    assert all(to_python(each) is each for each in kept)


@pytest.mark.parametrize("check", [check_number, check_int])
@pytest.mark.parametrize("bounds", [(0,), (0, 9)])
def test_checks_return_a_number_of_python(check, bounds):
    for wrap in WRAPPED:
        assert type(check("number", wrap(4), *bounds)) is int


def test_a_wrong_call_is_pythons_own_error():
    @check_arguments(count=(1,))
    def function(count: int, factor: "float | None" = None, *, name: str = "") -> list:
        return [count, factor, name]

    assert function(np.int8(3), np.float16(0.5), name="x") == [3, 0.5, "x"] and function(
        factor=None, count=3
    ) == [3, None, ""]
    for words in ({}, {"count": 1, "other": 2}):
        with pytest.raises(TypeError):
            function(**words)
    with pytest.raises(dp.ConfigError, match="count is 0; it takes whole numbers from 1 on"):
        function(0)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda m: dp.TrainTransform(size=np.array([64.0, 32.0])), "size is "),
        (
            lambda m: dp.TrainTransform(size=10**9),
            "size is 1000000000; it takes whole numbers up to 65536",
        ),
        (lambda m: dp.TrainTransform(mean=(0.5, "x", 0.5)), "mean is "),
        (
            lambda m: dp.TrainTransform(mean=0.5),
            "mean is 0.5; .*, or one in a list with channels=1",
        ),
        (lambda m: dp.TrainTransform(scale=(True, 1)), "scale is "),
        (lambda m: dp.TrainTransform(sizes={True: 32}), "sizes is "),
        (lambda m: dp.IoUCropTransform(sampler_options="0.5"), "sampler_options is '0.5'"),
        (lambda m: dp.ViewsTransform(views={"a": {"count": 2.0}}), "count of a is 2.0"),
        (lambda m: dp.Rank(True, 2), "index is True"),
        (lambda m: m.split([0.9, 0.1]), "fractions is .*; it takes names and shares"),
        (lambda m: m.split({"a": "0.5"}), "the share of 'a' is '0.5'"),
        (lambda m: m.split({"a": 0.5}, seed=-1), "seed is -1"),
        (lambda m: dp.Manifest.mix({"a": (m, True)}), "the share of 'a' is True"),
        (lambda m: dp.Manifest.mix({"a": m}), "names, manifests and shares"),
        (lambda m: dp.BatchDraws(0, -1, 0), "epoch is -1"),
    ],
)
def test_numbers_within_others_are_checked(thumbnails, build, message):
    with pytest.raises(dp.ConfigError, match=message):
        build(thumbnails)


def test_numbers_within_others_become_pythons(thumbnails):
    transform = dp.TrainTransform(
        size=np.array([64, 32]),
        scale=np.array([0.2, 1.0]),
        mean=torch.tensor([0.5, 0.5, 0.5]),
        sizes={np.int64(3): np.int32(32)},
    )
    assert transform == dp.TrainTransform(
        size=(64, 32), scale=(0.2, 1.0), mean=(0.5, 0.5, 0.5), sizes={3: 32}
    )
    assert (
        dp.TrainTransform(size=np.int64(64)).size == 64
        and type(dp.TrainTransform(size=torch.tensor(64)).size) is int
    )
    views = dp.ViewsTransform(
        views={"a": {"count": np.int64(2), "size": np.int64(32), "flip": np.float64(0.5)}}
    )
    assert json.dumps(views.views) == json.dumps({"a": [{"size": 32, "flip": 0.5}] * 2})
    parts = thumbnails.split({"a": np.float64(0.5), "b": np.float32(0.5)}, seed=np.uint8(3))
    assert [len(each) for each in parts.values()] == [
        len(each) for each in thumbnails.split({"a": 0.5, "b": 0.5}, seed=3).values()
    ]
    assert dp.IoUCropTransform(sampler_options=np.array([0.1, 0.5])).sampler_options == [0.1, 0.5]
    assert dp.ShortestSizeTransform(min_size=np.array([32, 64])).min_size == [32, 64]


def test_a_loader_of_numbers_of_numpy(thumbnails):
    numbers = {
        "batch_size": np.int64(8),
        "seed": np.random.default_rng(0).integers(1 << 63),
        "max_bad_fraction": np.float32(0.5),
    }
    options = {"transform": dp.TrainTransform(size=8), "shuffle": np.bool_(True), **numbers}
    with dp.build_loader(thumbnails, SyntheticConfig(), **options) as one:
        assert type(one.plan.batch_size) is type(one.plan.seed) is int
        assert sum(len(list(one)) for _ in range(2)) == 2 * len(one)
        one.set_epoch(np.int64(5))
        assert type(one.epoch) is int and one.epoch == 5
        for epoch in (-1, 1.0, 2**32, True, "3"):
            with pytest.raises(dp.ConfigError, match="epoch is "):
                one.set_epoch(epoch)


NUMBERS = st.sampled_from(
    [np.float64, np.float32, np.longdouble, np.asarray, torch.tensor, Fraction, float]
)
COUNTS = st.sampled_from([np.int64, np.uint8, np.asarray, torch.tensor, int])
SAMPLINGS_OF_ALL = {
    "weighted": lambda number, count: dp.Weighted(
        weights=np.linspace(0.5, 1, 37), epoch_size=count(20)
    ),
    "by class": lambda number, count: {
        "name": "weighted",
        "weights": {f"class {each}": number(0.5) for each in range(5)},
    },
    "per class": lambda number, count: dp.PerClass(classes=count(2), samples=count(4)),
    "repeated": lambda number, count: dp.Repeated(times=count(2)),
    "schedule": lambda number, count: dp.Schedule(
        schedule={np.int64(0): "uniform", np.uint8(2): dp.Balanced()}
    ),
    "plain": lambda number, count: None,
}
MIXES = {
    "mixup": lambda number, count: dp.MixUp(alpha=number(0.5), num_classes=count(5)),
    "either": lambda number, count: dp.RandomChoice(
        [dp.MixUp(num_classes=count(5)), dp.CutMix(probability=number(0.5), num_classes=5)]
    ),
    "a function": lambda number, count: lambda batch, draws: batch,
    "an object": lambda number, count: Halved(number(0.5)),
    "none": lambda number, count: None,
}


@dataclass
class Halved:
    """A user's own batch transform, whose numbers nobody has made plain."""

    share: object
    table: object = field(default_factory=lambda: np.arange(3.0))
    path: Path = Path("x")
    kinds: frozenset = frozenset({"b", "a"})
    infinite: float = float("inf")

    def __call__(self, batch, draws):
        return batch


@settings(max_examples=40)
@given(NUMBERS, COUNTS, st.sampled_from(sorted(SAMPLINGS_OF_ALL)), st.sampled_from(sorted(MIXES)))
def test_a_state_is_taken_by_json_and_by_torch_load(thumbnails, number, count, sampling, mix):
    def build():
        transform = dp.TrainTransform(
            size=count(8),
            flip=number(0.5),
            scale=(number(0.25), number(1)),
            mean=[number(0.5)] * 3,
            augment=[{"name": "RandAugment", "magnitude": count(3)}, RandomErasing(p=number(0.25))],
        )
        options = {
            "sampling": SAMPLINGS_OF_ALL[sampling](number, count),
            "batch_transform": MIXES[mix](number, count),
        }
        return dp.build_loader(
            thumbnails,
            SyntheticConfig(),
            transform=transform,
            batch_size=count(8),
            seed=count(3),
            **options,
        )

    with build() as one:
        next(iter(one))
        state = one.state_dict()
    again = json.loads(json.dumps(state, allow_nan=False))
    assert again == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state
    with build() as other:
        other.load_state_dict(again)
        assert other.state_dict() == state
