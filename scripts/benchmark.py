"""The A/B: compares loaders on the same plan. Agreement of the pixels first, then trials in random order, ratios with intervals.

python scripts/benchmark.py data.train=/my/images arms=[torch,dali]
python scripts/benchmark.py data.train=/my/images -m loader=dali_cpu loader.num_threads=1,2,4
"""

from dali_pipes.cli.hydra import run, sweep_folder
from dali_pipes.tools.benchmark.run import benchmark

if __name__ == "__main__":
    run("benchmark", lambda config: benchmark(config, sweep_folder()))
