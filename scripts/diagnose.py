"""Why training waits, and what would change it: its parts alone and together, a verdict, fixes with what they would gain.

python scripts/diagnose.py data.train=/my/images model=resnet18 loader=torch loader.num_workers=4
python scripts/diagnose.py experiment=imagenet_resnet50 data.root=/imagenet verify=true
"""

from typing import Any

from dali_pipes.cli.hydra import run
from dali_pipes.errors import ConfigError


def job(config: Any) -> None:
    try:
        from dali_pipes.tools.diagnosis.run import diagnose
    except ModuleNotFoundError as error:
        raise ConfigError(f"a training step needs {error.name}; run bash scripts/setup.sh train") from None
    diagnose(config)


if __name__ == "__main__":
    run("diagnose", job)
