"""Compares loaders on the same plan: agreement of the pixels first, then speed, CPU time and memory.

python scripts/benchmark.py data.train=/my/images arms=[torch,dali]
"""

from _hydra import run

from dali_pipes.benchmark.run import benchmark

if __name__ == "__main__":
    run("benchmark", benchmark)
