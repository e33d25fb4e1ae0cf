"""What `dali-pipes diagnose -- program.py` says of programs with a planted cause, and what its
first fix gains when it is made.

    python measure.py OUT.json [alone] [gains] [beside] [pairs] [PROGRAM …]
    python measure.py OUT.json table

Each program is diagnosed three times alone and three times beside two busy processes, pairs of
causes once. The first fix of each diagnosis alone is made in the program's text, and the pace of
the program before and after it is measured.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tests/support"))
from planted import hogs

from dali_pipes.measure.stats import paired_ratio
from dali_pipes.system.progress import track

PROGRAMS = Path(__file__).parent / "programs"
PARTS = ("alone", "gains", "beside", "pairs")
RUNS, PAIRS, SECONDS = 3, 4, 5.0
OTHERS = "other programs"
# program: the question as people ask it, the verdicts that are right, and a part that has to be
# named among an item's dearest two
EXPECTED = {
    "tensors_no_worker": (
        "Training on CIFAR in memory is slow without workers",
        {"prep-bound (item by item)"},
        "",
    ),
    "tensors_8_workers": (
        "Training became slower with num_workers=8",
        {"prep-bound (too many workers)"},
        "",
    ),
    "tensors_64_workers": (
        "num_workers=64 on a small machine",
        {"prep-bound (too many workers)"},
        "",
    ),
    "python_resize": (
        "CPU at 100 %, my own resize",
        {"prep-bound (CPU saturated)"},
        "a Python loop in resize()",
    ),
    "loadtxt_features": (
        "CPU at 99 % with features in text files",
        {"prep-bound (CPU saturated)"},
        "np.loadtxt",
    ),
    "slow_storage": ("CPU and GPU are both idle", {"fetch-bound"}, "time.sleep"),
    "rotated_cifar": (
        "CPU at 100 %, heavy augmentation",
        {"prep-bound (CPU saturated)"},
        "RandomRotation",
    ),
    "short_epochs": ("A long pause at the start of each epoch", {"start-bound"}, ""),
    "one_worker_jpegs": (
        "CPU at 50 %, GPU waiting for JPEGs",
        {"prep-bound (too few workers)"},
        "decoding",
    ),
    "batches_of_one": ("Nothing waits for data, GPU utilization is low", {"launch-bound"}, ""),
    "large_model": ("Is my loader fast enough?", {"model-bound"}, ""),
    "waiting_step": ("Each step pauses, CPU and GPU are idle", {"sync-bound"}, ""),
    "tf_serial_map": (
        "tf.data with a serial map",
        {"prep-bound (CPU saturated)", "prep-bound (too few workers)"},
        "",
    ),
}
# tf.data whose order is wrong: what has to come first in what is said.
WRONG = {"tf_cache_after_shuffle": "Wrong: cache() comes after"}

# Rotates a batch of small images, each by its own angle.
ROTATION = """angles = torch.empty(len(images)).uniform_(-0.5, 0.5)
        sin, cos, zero = angles.sin(), angles.cos(), 0 * angles
        turns = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
        grid = nn.functional.affine_grid(turns, images.shape, False)
        images = nn.functional.grid_sample(images, grid, align_corners=False)
        loss = nn"""


def waiting(seconds):
    """A step that sleeps."""
    return r"optimizer\.step\(\)", f"optimizer.step()\n        __import__('time').sleep({seconds})"


# What is changed in a program's text, by a part of the fix's name: regular expressions, and what is
# written instead.
CHANGES = {
    "BatchSampler": [
        (
            r"DataLoader\(TensorDataset\(images, labels\), batch_size=128.*\)",
            "DataLoader(data, sampler=order, batch_size=None)",
        ),
        (
            "train_loader = ",
            "order = BatchSampler(RandomSampler(data), 128, False)\ntrain_loader = ",
        ),
        ("\norder = ", "\ndata = TensorDataset(images, labels)\norder = "),
        ("import DataLoader,", "import BatchSampler, DataLoader, RandomSampler,"),
    ],
    "np.loadtxt": [(r"savetxt\(", "save("), (r"\.txt", ".npy"), ("loadtxt", "load")],
    "a Python loop": [
        (r"image = resize\(self.*", "image = self.images[index % 64][::4, ::4].copy()")
    ],
    "RandomRotation": [(r"    transforms\.RandomRotation.*\n", ""), ("loss = nn", ROTATION)],
    "copy the data": [(r" *time\.sleep\(0\.01\)\n", "")],
    "take .item()": [(r" *log\(loss.item\(\)\)\n", "")],
}
# Two causes in one program: the program of the first, what plants the second, and the verdicts or
# items that have to be named.
ONE_WORKER, FOUR_WORKERS = ("num_workers=2", "num_workers=1"), ("num_workers=2", "num_workers=4")
FEW, LOOP = "prep-bound (too few workers)", "a Python loop in resize()"
WITHOUT_PERSISTENCE, SLEEPING_ITEM = (
    (", persistent_workers=True", ""),
    [
        ("import torch\n", "import time\nimport torch\n"),
        ("features = np", "time.sleep(0.001); features = np"),
    ],
)
PAIRED = {
    "np.loadtxt, one worker": ("loadtxt_features", [ONE_WORKER], {FEW, "np.loadtxt"}),
    "np.loadtxt, a waiting step": (
        "loadtxt_features",
        [waiting(0.02)],
        {"sync-bound", "np.loadtxt"},
    ),
    "np.loadtxt, sleeping items": ("loadtxt_features", SLEEPING_ITEM, {"np.loadtxt", "sleep"}),
    "slow storage, a waiting step": (
        "slow_storage",
        [waiting(0.06)],
        {"sync-bound", "fetch-bound"},
    ),
    "slow storage, short epochs": (
        "slow_storage",
        [("return 4000", "return 64"), WITHOUT_PERSISTENCE, FOUR_WORKERS],
        {"start-bound", "time.sleep"},
    ),
    "slow storage, other programs": ("slow_storage", OTHERS, {"fetch-bound"}),
    "a Python loop, short epochs": (
        "python_resize",
        [("return 2000", "return 128"), FOUR_WORKERS],
        {"start-bound", LOOP},
    ),
    "rotation, one worker": ("rotated_cifar", [ONE_WORKER], {FEW, "RandomRotation"}),
    "rotation, batches of one": (
        "rotated_cifar",
        [("batch_size=64", "batch_size=1")],
        {"launch-bound", "RandomRotation"},
    ),
    "short epochs, a waiting step": (
        "short_epochs",
        [waiting(0.01)],
        {"start-bound", "sync-bound"},
    ),
    "one worker, other programs": ("one_worker_jpegs", OTHERS, {"prep-bound", OTHERS}),
    "a large model, other programs": ("large_model", OTHERS, {OTHERS}),
}
# Counts what a program takes from its DataLoaders for some seconds, after the first two.
COUNTS = """
import os, runpy, sys, time
import torch.utils.data.dataloader as module
start, images, began = None, 0, None
original = module.DataLoader.__iter__
def counting(self):
    global start, images, began
    for batch in original(self):
        now = time.monotonic()
        start = start or now
        if began is None and now - start > 2:
            began = now
        elif began is not None:
            images += len(batch[0])
            if now - began > {seconds}:
                print(images / (now - began), flush=True)
                os.killpg(0, 9)
        yield batch
module.DataLoader.__iter__ = counting
runpy.run_path({program!r}, run_name="__main__")
"""


def main(out, *names):
    parts = [name for name in names if name in PARTS] or PARTS
    conditions = {"alone": nullcontext, "beside two busy processes": lambda: hogs(2)}
    conditions = {
        condition: make for condition, make in conditions.items() if condition.split()[0] in parts
    }
    found = json.loads(Path(out).read_text()) if Path(out).exists() else {}
    names = [name for name in names if name not in PARTS]
    programs = [each for each in (*EXPECTED, *WRONG) if not names or each in names]
    for name in programs:  # what is measured again takes the place of what was
        for condition in conditions:
            found.pop(f"{name}, {condition}", None)
    work = [
        (name, PROGRAMS / f"{name}.py", condition) for condition in conditions for name in programs
    ]
    with tempfile.TemporaryDirectory() as folder:
        for name, program, condition in track(work, lambda item: f"{item[0]} {item[2]}", len(work)):
            for _ in range(RUNS):
                with conditions[condition]():
                    _, verdicts, part = EXPECTED.get(name, ("", set(), ""))
                    if condition != "alone" and "prep-bound (too few workers)" in verdicts:
                        verdicts = verdicts | {"prep-bound (CPU saturated)"}  # no core is idle then
                    one = diagnosed(program, verdicts, part, condition != "alone")
                    if name in WRONG:
                        one["right"] = one.get("says", "").startswith(WRONG[name])
                say(f"{name}, {condition}", one)
                found.setdefault(f"{name}, {condition}", []).append(one)
                Path(out).write_text(json.dumps(found, indent=1))
        if "gains" in parts:
            measure_gains(found, names or EXPECTED, Path(folder))
            Path(out).write_text(json.dumps(found, indent=1))

        pairs = PAIRED if "pairs" in parts else {}
        for name, (base, change, causes) in pairs.items():
            if names and name not in names:
                continue
            program = changed(
                PROGRAMS / f"{base}.py", [] if change == OTHERS else change, Path(folder)
            )
            with hogs(2) if change == OTHERS else nullcontext():
                one = diagnosed(program, causes, "", False)
            named = " ".join([one["verdict"], *one["also"], *one["parts"]])
            one["right"] = all(cause in named for cause in causes)
            say(name, one)
            found[f"pair: {name}"] = [one]
            Path(out).write_text(json.dumps(found, indent=1))


def diagnosed(program, verdicts, part, disturbed):
    """The verdict, whether it is right, and the seconds that it took."""
    begin = time.monotonic()
    command = [sys.executable, "-m", "dali_pipes.cli", "diagnose", "--", str(program)]
    ended = subprocess.run(command, capture_output=True, text=True)
    seconds = time.monotonic() - begin
    if ended.returncode:
        return {
            "verdict": ended.stderr[-300:],
            "right": False,
            "confidence": "",
            "fixes": [],
            "seconds": seconds,
            "also": [],
            "parts": [],
        }
    said = json.loads(ended.stdout)
    parts = [each["name"] for each in (said["items"] or {"parts": []})["parts"][:3]]
    also = [each["name"] for each in said["also"]]
    first = {said["verdict"]} & (verdicts | ({OTHERS} if disturbed else set()))
    # which is said of nothing else
    named = bool(verdicts & {said["verdict"], *also}) or "model-bound" in verdicts
    right = bool(first) and named and (not parts or any(part in each for each in parts[:2]))
    fixes = [
        {"what": fix["what"], "predicted": fix["predicted"]}
        for fix in said["fixes"]
        if fix["predicted"]
    ]
    found = {
        name: said[name] for name in ("verdict", "confidence", "rounds_say", "figures", "says")
    }
    return found | {
        "also": also,
        "parts": parts,
        "right": right,
        "fixes": fixes,
        "seconds": seconds,
    }


def measure_gains(found, names, folder):
    """Makes the first fix of each diagnosis alone, where it is a change of the program's text, and
    compares the gain with what each of these diagnoses predicted."""
    gains = {}
    runs = [(name, one) for name in names for one in found.get(f"{name}, alone", [])]
    for name, one in track(runs, lambda run: run[0], len(runs)):
        if not one["fixes"]:
            continue
        what, predicted = one["fixes"][0]["what"], one["fixes"][0]["predicted"]
        if (name, what) not in gains:
            gains[name, what] = gain_of(PROGRAMS / f"{name}.py", what, folder)
        if gains[name, what] is None:
            continue
        measured = gains[name, what]["measured"]
        within = predicted["low"] <= measured <= predicted["high"]
        one |= gains[name, what] | {"made": what, "predicted": predicted, "within": within}
        say(name, one)


def gain_of(program, what, folder):
    """The pace with the fix made over that before it; None for a fix that is no change of its text."""
    changes = next((change for name, change in CHANGES.items() if name in what), None)
    options = dict(re.findall(r"(num_workers|persistent_workers)=(\w+)", what))
    if options and "BatchSampler" not in what:
        options = (
            {"persistent_workers": "True"} | options
            if options.get("num_workers") != "0"
            else options
        )
        written = "".join(f", {name}={value}" for name, value in options.items())
        changes = [
            (r"(, num_workers=\d+)?(, persistent_workers=True)?\)\n\nmodel", written + ")\n\nmodel")
        ]
    # a fix that is none of this program's lines, such as that of a wrong verdict
    if changes is None or not re.search(changes[0][0], program.read_text()):
        return None

    after = changed(program, changes, folder)
    rates = {"before": [], "after": []}
    for number in range(PAIRS):
        for which in ("before", "after") if number % 2 == 0 else ("after", "before"):
            rates[which].append(pace(program if which == "before" else after))
    measured = paired_ratio(rates["before"], rates["after"]).estimate
    return {"measured": measured, "images_per_s": rates}


def changed(program, changes, folder):
    text = program.read_text()
    for old, new in changes:
        before, text = text, re.sub(old, lambda match, new=new: new, text)
        assert before != text, f"{program.name} has no {old}"
    file = folder / program.name
    file.write_text(text)
    return file


def pace(program):
    """Images per second of the program as it is."""
    command = [sys.executable, "-c", COUNTS.format(seconds=SECONDS, program=str(program))]
    ended = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    return float(ended.stdout.split()[-1])


def tabulate(out):
    """The table of the page, from the results."""
    found = json.loads(Path(out).read_text())
    print(
        "| question | program | right, alone and beside two busy processes | its fix | "
        "predicted | measured |"
    )
    print("|---|---|---|---|---|---|")
    for name, (question, verdicts, part) in EXPECTED.items():
        runs = [
            found.get(f"{name}, {condition}", [])
            for condition in ("alone", "beside two busy processes")
        ]
        right = ", ".join(
            f"{sum(one['right'] for one in each)} of {len(each)}" for each in runs if each
        )
        first = runs[0][0]
        gains = "| | |"
        if first.get("made"):
            predicted = first["predicted"]
            interval = (
                f"{predicted['estimate']:.2f} [{predicted['low']:.2f}, {predicted['high']:.2f}]"
            )
            gains = f"| {first['made']} | {interval} | {first['measured']:.2f} |".replace(
                str(PROGRAMS.resolve()) + "/", ""
            )
        says = f"{' or '.join(sorted(verdicts))}" + (f"; {part}" if part else "")
        print(
            f"| {question} | "
            f"[{name}](benchmarks/{Path(__file__).parent.name}/programs/{name}.py): {says} "
            f"| {right} {gains}"
        )
    every = [one for each in found.values() for one in each]
    made = [one for one in every if one.get("made")]
    wrong = [one for one in every if not one["right"]]
    certain = sum(one["confidence"] == "high" for one in wrong)
    print(
        f"\n{len(every) - len(wrong)} of {len(every)} right; {certain} wrong with high confidence"
    )
    seconds = [one["seconds"] for one in every]
    within = sum(one["within"] for one in made)
    print(
        f"{within} of {len(made)} gains within their interval; {min(seconds):.0f} to "
        f"{max(seconds):.0f} s to the verdict"
    )


def say(name, one):
    gain = (
        f"; {one['made']}: {one['measured']:.2f}, predicted {one['predicted']}"
        if one.get("made")
        else ""
    )
    text = (
        f"{name}: {'right' if one['right'] else 'WRONG'}, {one['verdict']} "
        f"({one['confidence']}), also {one['also']}"
    )
    print(
        f"{text}, items {one['parts']}, {one['seconds']:.0f} s{gain}", file=sys.stderr, flush=True
    )


if __name__ == "__main__":
    tabulate(sys.argv[1]) if sys.argv[2:] == ["table"] else main(*sys.argv[1:])
