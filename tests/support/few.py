"""Of a test that is marked `few` the fast tier runs some parameter sets; scripts/test.sh all runs
every one.
"""

import numpy as np


def choose_few(items: list, count: int) -> list:
    """Leaves out items of pytest: of the parameter sets of a test that is marked `few`, all but
    `count`, which are evenly spread from the first to the last.
    """
    tests = {}
    marked = [item for item in items if item.get_closest_marker("few")]
    for item in marked:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)

    chosen = {id(item) for item in items} - {id(item) for item in marked}
    for of_test in tests.values():
        places = np.linspace(0, len(of_test) - 1, min(count, len(of_test))).round().astype(int)
        chosen |= {id(of_test[place]) for place in places}
    return [item for item in items if id(item) in chosen]
