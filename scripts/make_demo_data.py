"""Makes the demo set: 1,000 training and 200 validation JPEGs in 10 classes, with ImageNet's sizes
and compression.

python scripts/make_demo_data.py [--out data/demo] [--train 1000] [--val 200] [--seed 0] [--objects]

With --objects it makes pictures of shapes instead, with boxes, keypoints, outlines, masks and
captions.
"""

import argparse
from pathlib import Path

from _demo_objects import make_demo_objects

from dali_pipes.data.demo import make_demo_set

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "data/demo")
    parser.add_argument("--train", type=int, default=1000)
    parser.add_argument("--val", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--objects", action="store_true")
    options = vars(parser.parse_args())
    print(make_demo_objects(**options) if options.pop("objects") else make_demo_set(**options))
