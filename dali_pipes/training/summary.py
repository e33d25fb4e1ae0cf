"""The result of a run, in figures and in one sentence."""

from collections.abc import Sequence
from typing import Any

from dali_pipes.loader.loader import Loader
from dali_pipes.system.provenance import Provenance
from dali_pipes.training.meter import MEANS, SUMS, rates

SCHEMA = 3
INPUT_BOUND = 0.1  # of the time; less is lost in the noise of a run


def summarize(history: Sequence[dict[str, Any]], fabric: Any, loader: Loader, provenance: Provenance) -> dict[str, Any]:
    """docs/training.md describes it."""
    last, best = history[-1], max(history, key=lambda row: row["top1"])
    figures = {name: sum(row.get(name, 0.0) for row in history) for name in (*SUMS, *MEANS)}
    found = rates(figures)
    return {
        "schema": SCHEMA,
        "fetched_bytes": int(figures["fetched_bytes"]),
        **{name: last[name] for name in ("top1", "top5", "val_loss", "val_images", "loss")},
        "best_top1": best["top1"],
        "best_epoch": best["epoch"],
        "epochs": len(history),
        "images": int(figures["images"]),
        "seconds": figures["seconds"],
        **{name: found[name] for name in ("images_per_s", "wait_share", "fetch_wait_share", "cpu_s_per_1000_images")},
        "conclusion": sentence(found, fabric.device.type),
        "ranks": fabric.world_size,
        "device": fabric.device.type,
        "global_batch_size": loader.plan.global_batch_size,
        "bad_samples": [{"path": path, "problem": problem} for _, path, problem in loader.bad_samples],
        "provenance": provenance,
    }


def sentence(found: dict[str, float], device: str) -> str:
    """Whether the loader or the network set the pace."""
    share, rate = found["wait_share"], found["images_per_s"]
    waited = f"{share:.0%} of the training time went into waiting for images"
    at = f"{rate:,.0f} images/s, {found['cpu_s_per_1000_images']:.1f} CPU-s per 1,000 images"
    shared = "; loader and network share the same cores here, so each slows the other down" if device == "cpu" else ""
    if found["fetch_wait_share"] >= INPUT_BOUND:
        waited += f", {found['fetch_wait_share']:.0%} into waiting for shards from the object store"
        return f"Fetch-bound: {waited} ({at}); a larger sampling.window_gb or cache, or a faster network, would help{shared}."
    if share >= INPUT_BOUND:
        return f"Input-bound: {waited} ({at}); a loader that kept up would give {rate / max(1 - share, 1e-9):,.0f}{shared}."
    return f"Compute-bound: only {waited} ({at}){shared}."
