"""Options of dali-pipes predict."""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.checks import check_choice, check_min, check_range
from dali_pipes.data.config import SPLITS, DataConfig
from dali_pipes.errors import ConfigError
from dali_pipes.options import check_options, option
from dali_pipes.training.config import ModelConfig


@dataclass(kw_only=True, slots=True)
class PredictConfig:
    """dali-pipes predict. docs/predict.md has the columns that are written.

    Attributes:
        split: "train" or "val".
        function: "module:function" that returns the model, an nn.Module or any function of images;
            None: the network `model.name`.
        checkpoint: the weights, from training or a state dict; None: those that `function` gives
            its model.
        output: "logits", "topk" or "embeddings" (what goes into the nn.Linear that is called last).
        k: classes per image, of output=topk.
        precision: "fp32", "bf16" or "fp16" (autocast).
        batch_size: images per forward pass.
        part_batches: batches per file; what a killed rank loses.
        threads: CPU threads of the model, on which the last bits depend; None: as at the first
            start in `out`, and there all cores.
        max_bad_fraction: the share of the images that may be bad in the scan, or fail on a rank
            before it stops, since the disk may be the cause.
        strict: images that the scan leaves out end the program with status 1.
        out: folder of the files; the same one resumes.
    """

    data: DataConfig = field(default_factory=DataConfig)
    transform: Any = None
    loader: Any = None
    model: ModelConfig = field(default_factory=ModelConfig)
    split: str = option("val", check_choice, SPLITS)
    function: str | None = None
    checkpoint: str | None = None
    output: str = option("logits", check_choice, ("logits", "topk", "embeddings"))
    k: int = option(5, check_min, 1)
    precision: str = option("fp32", check_choice, ("fp32", "bf16", "fp16"))
    batch_size: int = option(64, check_min, 1)
    part_batches: int = option(64, check_min, 1)
    threads: int | None = option(None, check_min, 1)
    max_bad_fraction: float = option(0.1, check_range, 0, 1)
    strict: bool = False
    out: str | None = None

    def __post_init__(self) -> None:
        check_options(self)
        if self.out is None:
            raise ConfigError("no output folder given; set out=DIR")

        for other in ("name", "function"):
            if self.function and (given := getattr(self.model, other)):
                raise ConfigError(
                    f"function={self.function} and model.{other}={given} are two models; "
                    "leave one of them out"
                )

        if self.function and self.model.options:
            raise ConfigError(
                f"model.options is for a network of model.name, and function={self.function} makes "
                "its own; leave it out"
            )

        if not self.function and not self.checkpoint:
            raise ConfigError(
                "no weights given; set checkpoint=FILE, or function=module:function, which "
                "returns a model with weights"
            )
