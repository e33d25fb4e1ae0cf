"""Trials that nobody measured, with figures that are easy to check."""


def gpu(utilization=0.5, energy_j=100.0, **other):
    return {
        "utilization": utilization,
        "sm_utilization": 0.4,
        "nvjpg_utilization": 0.9,
        "memory_mib": 4000.0,
        "energy_j": energy_j,
    } | other


def trial(arm, number=1, phase="round", rate=1000.0, cpu=2.0, jobs=1, gpus=None, **other):
    """Ten batches of 64 from second 100 on; the samples are from seconds 95, 100, 105 and 110."""
    seconds = 640 / rate
    job = {
        "first_batch_s": 0.5,
        "warm_up": {"seconds": 3.0, "images": 640, "steady": True, "rates": [rate] * 3},
        "start": 100.0,
        "end": 100.0 + seconds,
        "images": 640,
        "images_per_s": rate,
        "cpu_s_per_1000_images": cpu,
        "cgroup_cpu_s_per_1000_images": None,
        "throttled_s": None,
        "waits_s": [seconds / 10] * 10,
        "epoch_starts": [0, 5],
        "device": "cpu",
        "decodes": f"{arm} decodes on the CPU",
        "pinned_mib": None,
    } | other
    samples = [
        {
            "at": 95.0 + 5 * number,
            "cpu_s": 10.0 * number,
            "rss_mib": 1000.0 + number,
            "threads": 20,
            "processes": 3,
            "throttled_s": None,
            "gpus": gpus[number] if gpus else [],
            **({"pss_mib": 800.0} if number == 3 else {}),
        }
        for number in range(4)
    ]
    return {
        "arm": arm,
        "phase": phase,
        "round": number,
        "jobs": [dict(job) for _ in range(jobs)],
        "samples": samples,
        "sampler_cost": 0.005,
        "gpu_missing": {},
    }
