"""What the arms of a benchmark are asked to do, in a form that passes from process to process as JSON."""

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any, Self

from dali_pipes.config import (
    DaliConfig,
    DaliNativeConfig,
    EvalTransform,
    LoaderConfig,
    SyntheticConfig,
    TorchConfig,
    TrainTransform,
    Transform,
)
from dali_pipes.errors import DaliPipesError
from dali_pipes.loader import Loader, build_loader
from dali_pipes.manifest import Manifest

_KINDS = {
    kind.__name__: kind for kind in (DaliConfig, DaliNativeConfig, TorchConfig, SyntheticConfig, TrainTransform, EvalTransform)
}


class ArmError(DaliPipesError):
    """An arm that failed; there is no figure for it."""


@dataclass(frozen=True, slots=True)
class Work:
    """The plan that all arms carry out.

    Attributes:
        manifest: a saved manifest.
    """

    manifest: str
    transform: Transform
    batch_size: int
    seed: int

    def loader(self, config: LoaderConfig) -> Loader:
        """A loader of this work; `last_batch="pad"` keeps all batches of one size on any number of images."""
        manifest = Manifest.load(self.manifest)
        return build_loader(
            manifest, config, transform=self.transform, batch_size=self.batch_size, seed=self.seed, shuffle=True, last_batch="pad"
        )

    def plain(self) -> dict[str, Any]:
        return {"manifest": self.manifest, "transform": plain(self.transform), "batch_size": self.batch_size, "seed": self.seed}

    @classmethod
    def from_plain(cls, value: dict[str, Any]) -> Self:
        return cls(value["manifest"], from_plain(value["transform"]), value["batch_size"], value["seed"])


def plain(config: LoaderConfig | Transform) -> dict[str, Any]:
    return {"kind": type(config).__name__, **asdict(config)}


def from_plain(value: dict[str, Any]) -> Any:
    options = dict(value)
    return _KINDS[options.pop("kind")](**options)


def in_fresh_process(module: str, job: dict[str, Any], what: str) -> dict[str, Any]:
    """Runs `python -m module` with the job as JSON on stdin; its last line on stdout is the answer.

    Raises:
        ArmError: the process failed; the text says what it last wrote.
    """
    command = [sys.executable, "-P", "-m", module]  # -P: the folder that the user stands in does not shadow modules
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            out, err = process.communicate(json.dumps(job))
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)  # as a terminal does; the arm ends its workers and then itself
            process.wait(20)
            raise
    lines = out.strip().splitlines()
    if process.returncode == 0 and lines:
        result: dict[str, Any] = json.loads(lines[-1])
        return result
    if process.returncode == 2 and lines:
        raise ArmError(f"{what}: {json.loads(lines[-1])['error']}")
    last = "\n  ".join(err.strip().splitlines()[-5:])
    raise ArmError(f"{what}: its process ended with status {process.returncode}; the last it wrote:\n  {last}")


def answer(ask: Any) -> None:
    """The other end of `in_fresh_process`."""
    try:
        print(json.dumps(ask(json.load(sys.stdin))))
    except DaliPipesError as error:
        print(json.dumps({"error": str(error)}))
        sys.exit(2)
