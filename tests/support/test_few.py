from types import SimpleNamespace

import pytest
from few import choose_few

SETS = {"test_a.py::test": 1, "test_a.py::test_cpu": 2, "test_b.py::test": 5}


def items(marked):
    return [
        SimpleNamespace(
            nodeid=name if of_test == 1 else f"{name}[{at}]",
            get_closest_marker=lambda mark, name=name: mark == "few" and name in marked,
        )
        for name, of_test in SETS.items()
        for at in range(of_test)
    ]


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


def test_of_a_test_without_the_mark_all_are_run():
    found = [item.nodeid for item in choose_few(items(["test_a.py::test_cpu"]), 1)]
    assert found == [item.nodeid for item in items([]) if item.nodeid != "test_a.py::test_cpu[1]"]
