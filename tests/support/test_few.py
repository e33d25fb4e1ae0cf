from types import SimpleNamespace

import pytest
from few import choose_few

import dali_pipes as dp
from dali_pipes.measure.arms import SyntheticConfig

SETS = {"test_a.py::test": 1, "test_a.py::test_cpu": 2, "test_b.py::test": 5}


def items(marked, most=()):
    return [
        SimpleNamespace(
            nodeid=name if of_test == 1 else f"{name}[{at}]",
            get_closest_marker=lambda mark, name=name: (
                pytest.mark.few(*most).mark if mark == "few" and name in marked else None
            ),
        )
        for name, of_test in SETS.items()
        for at in range(of_test)
    ]


def sets_of(**values):
    """All products of these parameters of a test that is marked few, the last one changing
    fastest.
    """
    products = [{}]
    for name, each in values.items():
        products = [params | {name: value} for params in products for value in each]
    return [
        SimpleNamespace(
            nodeid=f"test_a.py::test[{at}]",
            get_closest_marker=lambda mark: pytest.mark.few.mark if mark == "few" else None,
            callspec=SimpleNamespace(params=params),
        )
        for at, params in enumerate(products)
    ]


def few_of(count=2, **values):
    return [item.callspec.params for item in choose_few(sets_of(**values), count)]


@pytest.mark.parametrize(
    ("count", "chosen"), [(1, "0"), (2, "04"), (3, "024"), (5, "01234"), (9, "01234")]
)
def test_the_first_and_the_last_and_some_between_are_run(count, chosen):
    found = [item.nodeid for item in choose_few(items(SETS), count)]
    assert found == [
        "test_a.py::test",
        *(f"test_a.py::test_cpu[{at}]" for at in range(min(count, 2))),
        *(f"test_b.py::test[{at}]" for at in chosen),
    ]


@pytest.mark.parametrize(("count", "chosen"), [(1, "0"), (3, "024"), (9, "024")])
def test_a_test_says_how_many_it_needs_at_most(count, chosen):
    found = [item.nodeid for item in choose_few(items(["test_b.py::test"], most=(3,)), count)]
    assert found[3:] == [f"test_b.py::test[{at}]" for at in chosen]


def test_of_a_test_without_the_mark_all_are_run():
    found = [item.nodeid for item in choose_few(items(["test_a.py::test_cpu"]), 1)]
    assert found == [item.nodeid for item in items([]) if item.nodeid != "test_a.py::test_cpu[1]"]


@pytest.mark.parametrize(
    "loaders",
    [
        ["torch_pil", "dali_cpu", "dali_cpu_graph", "synthetic"],
        ["torch", "dali", "dali whole", "dali graph", "torchvision"],
        [dp.TorchConfig(), dp.DaliConfig(device="cpu"), SyntheticConfig()],
        [dp.DaliConfig(device="cpu"), dp.DaliConfig(device="cpu", decode="whole")],
    ],
    ids=str,
)
@pytest.mark.parametrize("others", [1, 3, 10])
def test_each_loader_is_run_once_wherever_its_parameter_stands(loaders, others):
    for values in (
        {"name": loaders, "size": list(range(others))},
        {"size": list(range(others)), "name": loaders},
    ):
        found = few_of(**values)
        # the last one twice where the first set and the last are of it
        assert len(loaders) <= len(found) <= len(loaders) + 1
        assert {repr(params["name"]) for params in found} == set(map(repr, loaders))
        assert len({params["size"] for params in found}) >= min(len(loaders), others) - 1


def test_text_that_names_dali_is_no_loader():
    messages = ["a", "dali-pipes train", "loader.decode=none", "dali_cpu: no such file", "b"]
    assert [params["message"] for params in few_of(message=messages)] == ["a", "b"]


def test_more_sets_than_loaders_are_spread_as_ever():
    found = few_of(6, name=["torch", "dali"], size=range(10))
    assert len(found) == 6
