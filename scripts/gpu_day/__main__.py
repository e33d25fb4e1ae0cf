"""Eight measurements, each under a minute, that decide how the GPU loader becomes faster.

    PYTHONPATH=CHECKOUT:CHECKOUT/scripts python -m gpu_day OUT IMAGES [--only m1,m3] [--seconds 780]

Each is a process of its own, since most of them change CUDA's environment. It writes OUT/NAME.json
after each round, so that what was measured survives if it is cut off. docs/gpu-check.md says what
each outcome means. `--dry-run` tries all of them in little time, in one process; its figures mean
nothing.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
TOOL = HERE / "nvtx_times.so"
# in the order of worth: seconds, and the environment of the process
PLAN: dict[str, tuple[int, dict[str, str]]] = {
    "m1": (58, {}),
    "m3": (59, {}),
    "m6": (58, {}),
    "m2": (58, {"NVTX_INJECTION64_PATH": str(TOOL)}),
    "m7": (50, {}),
    "m4": (55, {"CUDA_DEVICE_MAX_CONNECTIONS": "32", "NVIMGCODEC_DEFAULT_NUM_CUDA_STREAMS": "2"}),
    "m5": (55, {"GPU_DAY_PRIORITY": "-5"}),
    "m8": (29, {}),
    "m8_sleeping": (29, {"GPU_DAY_SLEEPS": "1"}),
}
TO_START = 20  # seconds of which a measurement needs more


def run_all(args: argparse.Namespace) -> None:
    """Runs each measurement, and prints what it found."""
    build_tool()
    names, end = args.only.split(","), time.monotonic() + args.seconds
    if args.dry_run:
        run_child(args, names, 600, PLAN["m2"][1])
        return

    for name in names:
        limit, environment = PLAN[name]
        left = end - time.monotonic()
        if left < TO_START:
            print(f"{name}: no time left")
            break
        run_child(args, [name], min(limit, left), environment)


def run_child(
    args: argparse.Namespace, names: list[str], limit: float, environment: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "gpu_day", str(args.out), args.images]
    command += ["--one", ",".join(names), "--seconds", str(limit - 4)]
    command += ["--dry-run"] * args.dry_run
    # on four cores, as a host has with few for each GPU
    command = ["taskset", "-c", "0-3", *command] if names[0].startswith("m8") else command

    begun = time.monotonic()
    with open(args.out / f"{names[0]}.log", "w") as log:
        child = subprocess.Popen(command, env=os.environ | environment, stdout=log, stderr=log)
        try:
            status: int | str = child.wait(limit)
        except subprocess.TimeoutExpired:
            child.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(3)
            child.kill()
            status = "cut off"

    for name in names:
        print(f"== {name} {time.monotonic() - begun:.0f} s, {status}", flush=True)
        if (found := args.out / f"{name}.json").exists():
            print("\n".join(f"   {line}" for line in json.loads(found.read_text())["lines"]))
    if status not in (0, "cut off"):
        print((args.out / f"{names[0]}.log").read_text()[-2000:])
        if args.dry_run:
            sys.exit(1)


def build_tool() -> None:
    """Compiles the NVTX tool, whose headers are in CUDA's wheels; without a compiler the one that
    was brought along stays.
    """
    folders = [Path(each or ".") for each in sys.path]
    include = [f"-I{found}" for each in folders for found in each.glob("nvidia/*/include")]
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(TOOL), str(HERE / "nvtx_times.c")]
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run([*command, *include, "-lpthread"], check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        "gpu_day", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder for the results")
    parser.add_argument("images", help="folder of JPEGs, a hundred are enough; with --dry-run ''")
    parser.add_argument("--only", default=",".join(PLAN), help="which, in this order")
    parser.add_argument("--seconds", type=float, default=780, help="for all of them")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--one", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if unknown := [name for name in args.only.split(",") if name not in PLAN]:
        parser.error(f"--only {unknown[0]}: no such measurement; there are {', '.join(PLAN)}")

    args.out.mkdir(parents=True, exist_ok=True)
    if not args.one:
        run_all(args)
        return
    # the parent, which only waits, takes no GPU
    from gpu_day.measurements import MEASUREMENTS, Bench

    for name in args.one.split(","):
        with Bench(name, args.out, args.images, args.seconds, args.dry_run) as bench:
            MEASUREMENTS[name](bench)


if __name__ == "__main__":
    main()
