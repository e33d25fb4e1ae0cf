"""Writes the results as Markdown: the goals first, then a section for each part.

`markdown` is called after each part with the results so far. `SECTIONS` names the function that
makes the section of a part; comparisons have `_comparison`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from dali_pipes.measure.results import Control
from dali_pipes.measure.stats import Ratio, threshold
from dali_pipes.measure.wording import control_line
from dali_pipes.measure.workload import from_dict, to_dict
from dali_pipes.system.provenance import SIMULATED

Found = dict[str, Any]
Lines = list[str]
UNSETTLED = "not settled"
SETTINGS = (
    *(
        "decoder",
        "num_workers",
        "num_threads",
        "hw_decoder_load",
        "exact",
        "decode",
        "prefetch_queue_depth",
        "jpeg_fancy_upsampling",
    ),
    *(
        "hybrid_huffman_threshold",
        "preallocate_width_hint",
        "preallocate_height_hint",
        "device_memory_padding",
    ),
)
# pairs of arms that decode alike, with the plan and without it
PLANNED = (("dali", "dali_native_fancy"), ("dali_fastest", "dali_native"))


def markdown(found: Found) -> str:
    lines = _where(found["provenance"])
    if found["provenance"]["hardware"]["gpu"]:
        simulated = found["provenance"]["hardware"]["gpu"].endswith(SIMULATED)

        # figures of a simulated GPU meet no goal
        goals = list(_goals({} if simulated else found["parts"]))
        lines += (
            ["The GPU is simulated: no kernel runs, and the figures say nothing.", ""]
            if simulated
            else []
        )
        lines += ["## Goals", "", *_rows(("goal", "measured", "met"), goals)]

    for name, part in found["parts"].items():
        lines += [f"## {name} ({part['seconds']:.0f} s)", ""]

        if part["error"]:
            lines += [f"No result: {part['error']}", ""]
        if part["result"] is not None:
            lines += SECTIONS.get(name, _comparison)(part["result"])

    return "\n".join(lines)


def _where(provenance: Found) -> Lines:
    hardware, data = provenance["hardware"], provenance["data"]
    software = provenance["versions"] | provenance["gpu_software"]
    versions = ", ".join(f"{name} {version}" for name, version in software.items() if version)

    return [
        f"# GPU check: {hardware['gpu'] or 'no GPU, a dry run'}",
        "",
        (
            f"{hardware['cpu']}, {hardware['cpus_used']} cores, {hardware['memory_gib']} GiB. "
            f"{versions}."
        ),
        (
            f"{data['images']} images of {data['mean_kib']} KiB in the mean, repeated to "
            f"{provenance['epoch']}."
        ),
        f"{provenance['date']}, commit {provenance['commit']}, {' '.join(provenance['overrides'])}",
        "",
    ]


def _goals(parts: Found) -> Iterator[tuple[str, str, str]]:
    loader, trained, together = (_result(parts, part) for part in ("loader", "resnet50", "corun"))
    dali = loader.get("arms", {}).get("dali", {})
    ratio, best = dali.get("ratio") or {}, "best" if _result(parts, "grid") else "untuned"
    speed, cost = "images_per_s", "cpu_s_per_1000_images"

    for planned, native in PLANNED:
        yield _as_fast_as(planned, native, loader)

    yield _goal(f"dali ≥ 3 × the {best} DataLoader", ratio.get(speed), 3, loader, speed)

    yield _goal("CPU time of dali ≤ 1/4 of its", ratio.get(cost), 0.25, loader, cost)
    yield _goal(
        "resnet50 learns from dali at ≥ 0.97 × the speed from synthetic",
        _of_dali(trained),
        0.97,
        trained,
        speed,
    )

    two = "the same at ≥ 0.95, two at once with as many threads as half of the cores each"
    yield _goal(two, _of_dali(together), 0.95, together, speed)


def _as_fast_as(planned: str, native: str, loader: Found) -> tuple[str, str, str]:
    """The goal that planning costs little, with both arms' settings and images/s per core."""
    pairs = loader.get("planning") or []
    ratio = next(
        (
            each["images_per_s"]
            for each in pairs
            if (each["planned"], each["native"]) == (planned, native)
        ),
        None,
    )

    goal, measured, met = _goal(
        f"{planned} ≥ 0.97 × {native}, each at its best", ratio, 0.97, loader, "images_per_s"
    )
    if ratio:
        measured += f"; {'; '.join(_at_work(loader, arm) for arm in (planned, native))}"

    return goal, measured, met


def _at_work(result: Found, arm: str) -> str:
    rate, cores = result["arms"][arm]["images_per_s"], result["protocol"]["cpus"]
    settings = _settings(result["work"]["loaders"][arm])
    return f"{arm} ({settings}) {rate:,.0f} images/s, {rate / cores:,.0f} for each of {cores} cores"


def _of_dali(result: Found) -> Found | None:
    ratio = result.get("arms", {}).get("dali", {}).get("ratio") or {}
    return ratio.get("images_per_s")


def _goal(
    goal: str, ratio: Found | None, bound: float, result: Found, figure: str
) -> tuple[str, str, str]:
    """A row of the table of goals: the goal, what was measured, and whether the goal is met.

    It is decided only if the whole interval is on one side of the bound, by more than the control's
    noise. So a control that is off, or wide, voids only the figures that it could hide, as in
    `stats.claim`.
    """
    if not ratio:
        return goal, "not measured", ""

    control, measured = (
        (result["control"] or {}).get(figure),
        f"{_interval(ratio)}, {_rounds(result)}",
    )
    noise = control and threshold(
        Ratio(control["estimate"], control["low"], control["high"]), result["protocol"]["restart"]
    )

    if ratio["low"] is None or noise is None:
        return goal, measured, f"{UNSETTLED}: no interval"
    if ratio["low"] < bound < ratio["high"]:
        return goal, measured, UNSETTLED

    above = ratio["low"] >= bound
    effect = ratio["low"] / bound if above else bound / ratio["high"]
    if effect < noise:
        hidden = f"{result['baseline']} differs from itself by up to a factor of {noise:.3f}"
        return goal, measured, f"{UNSETTLED}: {hidden}, the figure from the bound by {effect:.3f}"

    return goal, measured, "yes" if above == (figure == "images_per_s") else "no"


def _rounds(result: Found) -> str:
    pairs = result["protocol"]["pairs"]
    return "1 round" if pairs == 1 else f"{pairs} rounds"


def _comparison(result: Found) -> Lines:
    baseline, control = result["baseline"], cast(Control | None, result["control"])
    summary = f"{_rounds(result)}, × is against {baseline}"
    each = f"for each of {result['protocol']['cpus']} cores"

    headings = (
        "arm",
        "settings",
        "images/s",
        each,
        "×",
        "CPU-s/1,000",
        "cores",
        "×",
        "SM",
        "NVJPG",
        "pixels apart: mean / p99 / max",
    )

    return [
        f"{summary}. {control_line(control, baseline, result['protocol']['restart'])}",
        "",
        *_rows(headings, [_arm(result, name) for name in result["arms"]]),
    ]


def _arm(result: Found, name: str) -> Sequence[str]:
    arm = result["arms"][name]
    if "images_per_s" not in arm:
        return name, "", arm["failed"] or arm["skipped"], *[""] * 8

    ratio, apart = arm["ratio"] or {}, result["agreement"]["arms"].get(name)
    return (
        name,
        _settings(result["work"]["loaders"][name]),
        f"{arm['images_per_s']:,.0f}",
        f"{arm['images_per_s'] / result['protocol']['cpus']:,.0f}",
        _interval(ratio.get("images_per_s")),
        f"{arm['cpu_s_per_1000_images']:.3f}",
        f"{arm['images_per_s'] * arm['cpu_s_per_1000_images'] / 1e3:.1f}",
        _interval(ratio.get("cpu_s_per_1000_images")),
        _share(arm["sm_utilization"]),
        _share(arm["nvjpg_utilization"]),
        f"{apart['mean']:.2f} / {apart['p99']:.0f} / {apart['max']:.0f}" if apart else "",
    )


def _grid(cells: list[Found]) -> Lines:
    return _rows(
        ("setting", "batch", "images/s", "CPU-s/1,000", "SM", "NVJPG"),
        [_cell(cell) for cell in cells],
    )


def _cell(cell: Found) -> Sequence[str]:
    dtype = f" dtype={cell['dtype']}" if "dtype" in cell else ""
    native = "dali_native: " if cell["loader"]["kind"] == "DaliNativeConfig" else ""
    again = " again" if "repeat" in cell else ""
    setting = f"{native}{_settings(cell['loader'])}{dtype}{again}", str(cell["batch_size"])

    if "error" in cell:
        return *setting, cell["error"], "", "", ""

    figures = f"{cell['images_per_s']:,.0f}", f"{cell['cpu_s_per_1000_images']:.3f}"
    return *setting, *figures, _share(cell["sm_utilization"]), _share(cell["nvjpg_utilization"])


def _probe(rows: list[Found]) -> Lines:
    if not rows:
        return ["No time for any.", ""]
    # a letter for each digest, so that one sees which sets give the same bits
    bits = {
        digest: chr(ord("A") + place)
        for place, digest in enumerate(dict.fromkeys(row.get("digest") for row in rows))
    }

    headings = (
        "setting",
        "batch",
        "outcome",
        "images",
        "pixels apart: mean",
        "same bits",
        "CPU-ms",
        "on the CPU",
        "SM",
        "NVJPG",
        "it",
    )
    return _rows(headings, [_tried(row, bits) for row in rows])


def _tried(row: Found, bits: dict[str | None, str]) -> Sequence[str]:
    setting = _settings(row["loader"]), str(row["batch_size"])
    if "error" in row:
        return *setting, f"**{row['error']}**", *[""] * 8

    return (
        *setting,
        "; ".join([*(f"**{fault}**" for fault in row["faults"]), *row["doubts"]])
        or "as on the CPU",
        str(row["images"]),
        f"{row['mean']:.3f}",
        bits[row["digest"]],
        f"{row['cpu_ms']:.2f}",
        f"{row['cpu_ms_on_cpu']:.2f}",
        _share(row["sm"]),
        _share(row["nvjpg"]),
        row["decodes"],
    )


def _doctor(result: Found) -> Lines:
    return _rows(
        ("check", "status", "found"),
        [(each["check"], each["status"], each["found"]) for each in result["findings"]],
    )


def _suite(result: Found) -> Lines:
    counts = ", ".join(f"{count} {name}" for name, count in result["counts"].items())
    lines = [f"{counts or 'no test'}.", ""]

    failed = [
        (each["test"], each["outcome"], _last_line(each["reason"])) for each in result["failed"]
    ]
    lines += _rows(("test", "outcome", "last line"), failed) if failed else []
    lines += (
        _rows(("skipped", "because"), [(count, why) for why, count in result["skipped"].items()])
        if result["skipped"]
        else []
    )

    return lines + (
        [f"No time for {', '.join(result['no_time'])}.", ""] if result["no_time"] else []
    )


def _profile(result: Found) -> Lines:
    lines = [f"{result['images_per_s']:,.0f} images/s.", ""]

    threads = [
        (name, f"{seconds:.3f}") for name, seconds in result["cpu_s_per_1000_images"].items()
    ]
    lines += _rows(("thread", "CPU-s/1,000"), threads)

    kernels = [
        (name[:100], f"{seconds:.2f}") for name, seconds in result["gpu_ms_per_1000_images"].items()
    ]
    return [*lines, *(_rows(("kernel", "GPU-ms/1,000"), kernels) if kernels else [])]


def _diagnose(result: Found) -> Lines:
    lines = [f"**{result['verdict']}** ({result['confidence']} confidence): {result['means']}.", ""]
    return [*lines, *(f"- {finding}" for finding in result["evidence"]), ""]


SECTIONS: dict[str, Callable[[Any], Lines]] = {
    "probe": _probe,
    "doctor": _doctor,
    "grid": _grid,
    "profile": _profile,
    "suite": _suite,
    "diagnose": _diagnose,
}


def _result(parts: Found, name: str) -> Found:
    return parts.get(name, {}).get("result") or {}


def _settings(loader: Found) -> str:
    """Names the settings that differ from their defaults."""
    default = to_dict(from_dict({"kind": loader["kind"]}))
    return (
        " ".join(
            f"{name}={loader[name]}" for name in SETTINGS if loader.get(name) != default.get(name)
        )
        or "defaults"
    )


def _interval(ratio: Found | None) -> str:
    if not ratio:
        return ""
    interval = "" if ratio["low"] is None else f" [{ratio['low']:.3f}, {ratio['high']:.3f}]"
    return f"{ratio['estimate']:.3f}{interval}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else ""


def _rows(headings: Sequence[str], rows: list[Any]) -> Lines:
    cells = [
        [str(cell).replace("|", "\\|").replace("\n", " ") for cell in row]
        for row in (headings, *rows)
    ]

    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "|" + "---|" * len(headings), *lines[1:], ""]
