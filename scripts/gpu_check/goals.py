"""The goals, relative to what this machine can do, and whether the results meet them."""

from collections.abc import Iterator
from typing import Any

from dali_pipes.measure.stats import Ratio, claim

Found = dict[str, Any]
SPEED, COST = "images_per_s", "cpu_s_per_1000_images"
# pairs of arms that decode alike, with the plan and without it
PLANNED = (("dali", "dali_native_fancy"), ("dali_fastest", "dali_native"))


def goals(parts: Found) -> Iterator[Found]:
    """Yields each goal with what was `measured`, in how many `rounds`, and whether it is `met`."""
    loader = _result(parts, "loader")
    best = "best" if _result(parts, "grid") else "untuned"

    for planned, native in PLANNED:
        both = (planned, native)
        pairs = loader.get("planning") or []
        ratios: Found = next(
            (each for each in pairs if (each["planned"], each["native"]) == both), {}
        )
        yield _goal(f"{planned} ≥ 0.97 × {native}, each at its best", ratios, 0.97, loader)

    yield _goal(f"dali ≥ 3 × the {best} DataLoader", _of_dali(loader), 3, loader)
    yield _goal("CPU time of dali ≤ 1/4 of its", _of_dali(loader), 0.25, loader, COST)

    trained, two = _result(parts, "resnet50"), _result(parts, "corun")
    alone = "resnet50 learns from dali at ≥ 0.97 × the speed from synthetic"
    yield _goal(alone, _of_dali(trained), 0.97, trained)
    together = "the same at ≥ 0.95, two at once with as many threads as half of the cores each"
    yield _goal(together, _of_dali(two), 0.95, two)


def _result(parts: Found, name: str) -> Found:
    return parts.get(name, {}).get("result") or {}


def _of_dali(result: Found) -> Found:
    return result.get("arms", {}).get("dali", {}).get("ratio") or {}


def _goal(goal: str, ratios: Found, bound: float, result: Found, figure: str = SPEED) -> Found:
    """One goal: it is met, or not, if a claim says so of the ratio to its bound."""
    if figure not in ratios:
        return {"goal": goal, "measured": None, "rounds": None, "met": "not measured"}

    measured, protocol = ratios[figure], result["protocol"]
    control = result["control"] and _ratio(result["control"][figure])
    claimed = claim(_ratio(measured, bound), control, protocol["restart"])
    met = {"more": figure == SPEED, "less": figure == COST}.get(claimed)
    return {
        "goal": goal,
        "measured": measured,
        "rounds": protocol["pairs"],
        "met": f"not settled: {claimed}" if met is None else "yes" if met else "no",
    }


def _ratio(found: Found, bound: float = 1.0) -> Ratio:
    """A ratio, or how far it is from a bound."""
    ends = (found[end] and found[end] / bound for end in ("low", "high"))
    return Ratio(found["estimate"] / bound, *ends)
