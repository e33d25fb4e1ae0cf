"""Writes the results as Markdown: a table of the goals, and one of each part.

A column is a key of gpu_check.json, which has all that the tables leave out.
"""

from collections.abc import Sequence
from typing import Any

from dali_pipes.measure.wording import control_line
from dali_pipes.measure.workload import from_dict, to_dict

Found = dict[str, Any]
LONGEST = 200  # characters of a text, from its end
FIGURES = ("images_per_s", "cpu_s_per_1000_images", "sm_utilization", "nvjpg_utilization")
PROBED = ("faults", "doubts", "images", "mean", "digest", "cpu_ms", "cpu_ms_on_cpu", "nvjpg")
GOAL = ("goal", "measured", "rounds", "met")
COLUMNS = {
    "probe": ("loader", "batch_size", *PROBED, "decodes", "error"),
    "grid": ("loader", "dtype", *FIGURES, "error"),
    "doctor": ("check", "status", "found"),
    "profile": ("name", "cpu_s_per_1000_images", "gpu_ms_per_1000_images"),
    "suite": ("test", "outcome", "reason"),
    "diagnose": ("verdict", "confidence", "means"),
}
COMPARED = ("arm", "loader", *FIGURES, "faster", "cost", "apart", "failed", "skipped")


def markdown(found: Found) -> str:
    where = found["provenance"]
    lines = [f"# GPU check: {where['hardware']['gpu'] or 'no GPU, a dry run'}", ""]
    lines += [f"{where['hardware']['cpu']}, {where['hardware']['cpus_used']} cores.", ""]
    lines += _table(GOAL, found["goals"])

    for name, part in found["parts"].items():
        lines += [f"## {name} ({part['seconds']:.0f} s)", ""]
        if part["error"]:
            lines += [f"No result: {part['error']}", ""]
        if part["result"] is not None:
            lines += _table(COLUMNS.get(name, COMPARED), _rows(name, part["result"]))
        if name not in COLUMNS and part["result"]:
            lines += [_control(part["result"]), ""]
    return "\n".join(lines)


def _rows(name: str, result: Any) -> list[Found]:
    match name:
        case "probe" | "grid":
            return result
        case "doctor":
            return result["findings"]
        case "diagnose":
            return [result]
        case "suite":
            counts = result["counts"] | {"no time": result["no_time"]}
            rows = [{"test": f"{n} tests", "outcome": outcome} for outcome, n in counts.items()]
            return rows + result["failed"]
        case "profile":
            return [
                {"name": name, column: value}
                for column in COLUMNS["profile"][1:]
                for name, value in result[column].items()
            ]
    return [_arm(result, arm) for arm in result["arms"]]


def _arm(result: Found, name: str) -> Found:
    arm = result["arms"][name]
    ratio = arm.get("ratio") or {}
    return arm | {
        "arm": name,
        "loader": result["work"]["loaders"][name],
        "faster": ratio.get("images_per_s"),
        "cost": ratio.get("cpu_s_per_1000_images"),
        "apart": result["agreement"]["arms"].get(name, {}).get("mean"),
    }


def _control(result: Found) -> str:
    return control_line(result["control"], result["baseline"], result["protocol"]["restart"])


def _text(value: Any) -> str:
    match value:
        case None | []:
            return ""
        case float():
            return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        case {"estimate": estimate, "low": low, "high": high}:
            return f"{estimate:.3f}" + ("" if low is None else f" [{low:.3f}, {high:.3f}]")
        case {"kind": kind}:
            default = to_dict(from_dict({"kind": kind}))
            changed = (f"{name}={value[name]}" for name in value if value[name] != default[name])
            return " ".join([kind.removesuffix("Config"), *changed])
        case list():
            return "; ".join(map(str, value))
    return " ".join(str(value).split())[-LONGEST:]


def _table(columns: Sequence[str], rows: Sequence[Found]) -> list[str]:
    lines = [columns, ["---"] * len(columns)]
    lines += [[_text(row.get(name)).replace("|", "\\|") for name in columns] for row in rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]
