"""Of a test that is marked `few` the fast tier runs some parameter sets, scripts/test.sh all more,
and a release every one. A test that takes long says how many at most: `few(3)`.
"""

import re

import numpy as np

import dali_pipes as dp


def choose_few(items: list, count: int) -> list:
    """Leaves out items of pytest: of the parameter sets of a test that is marked `few`, all but
    `count`, which are evenly spread from the first to the last, and one of each loader that is not
    among these. Of a test that is marked `few(3)` no more than three are left, whatever their
    loaders.
    """
    tests = {}
    marked = [item for item in items if item.get_closest_marker("few")]
    for item in marked:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)

    chosen = {id(item) for item in items} - {id(item) for item in marked}
    for of_test in tests.values():
        most = next(iter(of_test[0].get_closest_marker("few").args), None)
        few = [of_test[place] for place in _spread(len(of_test), min(count, most or count))]
        if most is None:
            few += _one_of_each_loader(of_test, few)
        chosen |= set(map(id, few))
    return [item for item in items if id(item) in chosen]


def _spread(length: int, count: int) -> list[int]:
    """`count` places, or all, evenly spread from the first to the last."""
    return np.linspace(0, length - 1, min(count, length)).round().astype(int).tolist()


def _one_of_each_loader(of_test: list, few: list) -> list:
    """A set of each loader that has none among `few`; of several loaders they are sets of different
    other parameters.
    """
    parameter = _parameter_of_loaders(of_test)
    by_loader = {}
    for item in of_test if parameter else []:
        by_loader.setdefault(repr(item.callspec.params[parameter]), []).append(item)

    with_one = {repr(item.callspec.params[parameter]) for item in few} if parameter else set()
    last = max(len(by_loader) - 1, 1)
    return [
        sets[round(place / last * (len(sets) - 1))]
        for place, (loader, sets) in enumerate(by_loader.items())
        if loader not in with_one
    ]


def _parameter_of_loaders(of_test: list) -> str | None:
    """The first parameter that DALI is a value of, as a config or by the name of one."""
    for item in of_test:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        for parameter, value in params.items():
            if isinstance(value, dp.DaliConfig) or (
                isinstance(value, str) and re.fullmatch(r"dali([ _]\w+)*", value)
            ):
                return parameter
    return None
