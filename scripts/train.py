"""Trains an image classifier; the same samples and crops with every loader.

python scripts/train.py experiment=demo_resnet18
python scripts/train.py data.root=/imagenet model=resnet50 loader=dali precision=bf16
torchrun --nproc-per-node 8 scripts/train.py experiment=imagenet_resnet50 data.root=/imagenet
"""

from _hydra import job_folder, run

from dali_pipes.training.run import train

if __name__ == "__main__":
    run("train", lambda config: train(config, job_folder()))
