"""What the plan costs: CPU microseconds an image, alone and fed into DALI.

python scripts/planning_cost.py data.train=/my/images batch_size=256
"""

from dali_pipes.backends.dali.planning import planning_cost
from dali_pipes.cli.hydra import run
from dali_pipes.data.images import open_images
from dali_pipes.tools.preview.run import PreviewConfig


def job(config: PreviewConfig) -> None:
    manifest = open_images(config.data, config.split)
    costs = planning_cost(manifest, config.transform, config.batch_size)
    print("".join(f"{name}: {cost:.2f} CPU-µs an image\n" for name, cost in costs.items()), end="")


if __name__ == "__main__":
    run("preview", job, __doc__ or "")
