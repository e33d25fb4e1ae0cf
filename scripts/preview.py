"""Shows what a loader yields: shapes, speed, a digest of the sample order, and a picture of the first images.

python scripts/preview.py loader=dali data.train=/my/images
python scripts/preview.py loader=torch data.train=/my/images     # the same samples, the same crops
"""

from dali_pipes.cli.hydra import run
from dali_pipes.tools.preview import preview

if __name__ == "__main__":
    run("preview", preview)
