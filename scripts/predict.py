"""The job `predict` of dali-pipes, out of a checkout: python scripts/predict.py --help"""

from dali_pipes.cli import start

if __name__ == "__main__":
    start("predict")
