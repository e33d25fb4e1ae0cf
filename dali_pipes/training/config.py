"""The options of dali-pipes train: dataclasses that Hydra fills from conf/ and the command line.

Each class checks its values when it is made; its docstring is the text of --help, in this order.
"""

from dataclasses import dataclass, field
from typing import Any

from dali_pipes.checks import check_choice, check_int, check_number, describe_value
from dali_pipes.data.config import DataConfig
from dali_pipes.errors import ConfigError, OptionError
from dali_pipes.options import check_options, option
from dali_pipes.plan.transforms import views_of


@dataclass(kw_only=True, slots=True)
class ModelConfig:
    """The network.

    Attributes:
        name: in torchvision.models, or in timm if that is installed (timm/resnet50 where both have
            it), or a folder of a model that Hugging Face's transformers saved; required for
            training; None: the program's default.
        function: "module:function" that returns the network, in place of `name`; it is called with
            num_classes and channels if it takes them.
        options: further arguments of the function that builds the network, such as
            {drop_path_rate: 0.1}; for a folder of Hugging Face, entries of its config.json.
        weights: what it starts from: a file (torch.save or safetensors), or a name that torchvision
            or timm gives to weights of this network, such as IMAGENET1K_V2; the head is new where
            it is for other classes; None: random.
        freeze: patterns of the names of parameters that are not trained; backbone.* is all but the
            head. `function`, `weights` and `freeze` are for dali-pipes train.
        channels_last: memory format of the weights; on a GPU convolutions in half precision are
            faster with it.
        compile: torch.compile.
    """

    name: str | None = "resnet50"
    function: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    weights: str | None = None
    freeze: list[str] = field(default_factory=list)
    channels_last: bool = True
    compile: bool = False

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(kw_only=True, slots=True)
class OptimizerConfig:
    """SGD or AdamW, with PyTorch's option names; or timm's LAMB.

    Attributes:
        name: "sgd", "adamw" or "lamb"; the last needs timm.
        lr: the learning rate after the warm-up, for global batches of `lr_batch_size`.
        lr_batch_size: the rate is scaled linearly with the global batch, from this one; None: `lr`
            holds for any.
        lr_scale: factors of the rate by patterns of parameters' names, such as {layer1.*: 0.1};
            the first pattern that fits a name counts.
        weight_decay: SGD adds it to the gradient, AdamW subtracts it from the weights, LAMB adds it
            to the step before the layer's trust ratio.
        clip_grad_norm: the largest norm of all gradients together; larger ones are scaled down to
            it before each step, as by torch.nn.utils.clip_grad_norm_; None: they stay.
        momentum, nesterov: for SGD only.
        beta1, beta2: for AdamW and LAMB only.
        decay_norm_and_bias: whether biases and normalizations get weight decay too, as PyTorch's
            optimizers do by default.
    """

    name: str = option("sgd", check_choice, ("sgd", "adamw", "lamb"))
    lr: float = option(0.1, check_number, 0)
    lr_batch_size: int | None = option(256, check_int, 1)
    weight_decay: float = option(1e-4, check_number, 0)
    lr_scale: dict[str, float] = field(default_factory=dict)
    decay_norm_and_bias: bool = True
    clip_grad_norm: float | None = option(None, check_number, 1e-6)
    momentum: float = option(0.9, check_number, 0, 1)
    nesterov: bool = False
    beta1: float = option(0.9, check_number, 0, 0.99999)
    beta2: float = option(0.999, check_number, 0, 0.99999)

    def __post_init__(self) -> None:
        check_options(self)
        if self.nesterov and not self.momentum:
            raise OptionError(type(self), "nesterov needs a momentum greater than 0")


TASKS = ("classification", "multilabel", "regression")
LOSS_NAMES = ("cross_entropy", "bce", "focal", "mse", "l1", "smooth_l1", "huber")
BALANCED = "balanced"
FOCAL_GAMMA = 2.0  # of the paper


def check_class_weights(name: str, value: Any) -> list[float] | None:
    """Checks weights of classes, and returns those that are numbers."""
    if value is None or value == BALANCED:
        return None
    numbers = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(each, bool) or not isinstance(each, int | float) for each in numbers) or any(
        each < 0 for each in numbers
    ):
        raise ConfigError(
            f"{name} is {describe_value(value)}; it takes balanced, or a number of at least 0 for "
            "each class, such as [1,2.5]"
        )
    return [float(each) for each in numbers]


@dataclass(kw_only=True, slots=True)
class TaskConfig:
    """What is learned from the labels, and the loss; docs/training.md.

    Attributes:
        name: "classification", "multilabel" or "regression"; None: what the labels are.
        loss: "cross_entropy", "bce" or "focal" of one class each; "bce" or "focal" of several;
            "mse", "l1", "smooth_l1" or "huber" of numbers; None: the first.
        class_weights: of the loss, "balanced" or a number for each class; balanced: images /
            classes / images of the class.
        pos_weight: of the decisions for a class in "bce", "balanced" or a number for each class;
            balanced: images without the class / images of it.
        focal_gamma: of "focal".
        target_threshold: of "bce" of one class each: smoothed and mixed labels above it become 1,
            others 0; None: they stay.
    """

    name: str | None = option(None, check_choice, (None, *TASKS))
    loss: str | None = option(None, check_choice, (None, *LOSS_NAMES))
    class_weights: Any = option(None, check_class_weights)
    pos_weight: Any = option(None, check_class_weights)
    focal_gamma: float = option(FOCAL_GAMMA, check_number, 0)
    target_threshold: float | None = option(None, check_number, 0, 1)

    def __post_init__(self) -> None:
        check_options(self)
        weights = check_class_weights("class_weights", self.class_weights)
        # a pos_weight of 0 leaves the images without the class
        if weights is not None and not any(weights):
            given = describe_value(self.class_weights)
            raise OptionError(
                type(self), f"class_weights is {given}: nothing would count in the loss"
            )


FROM_DATA, NONE, SPLIT = "data", "none", "split:"


def split_share(validation: str) -> float | None:
    """The share of "split:0.1"; None: it draws nothing from the training images."""
    return float(validation.removeprefix(SPLIT)) if validation.startswith(SPLIT) else None


def check_validation(name: str, value: str) -> None:
    if value in (FROM_DATA, NONE):
        return
    try:
        if (share := split_share(value)) is not None and 0 < share < 1:
            return
    except ValueError:
        pass
    raise ConfigError(
        f"{name} is {value!r}; it takes data (data.val, or the folder val/ of data.root), "
        "split:0.1 for that share of the training images, or none"
    )


@dataclass(kw_only=True, slots=True)
class ScheduleConfig:
    """The learning rate after the warm-up, which `warmup_epochs` gives; docs/training.md compares
    it with PyTorch's and timm's schedulers.

    Attributes:
        name: "cosine", "linear", "constant", "step", "exponential", "wsd" (warm-up, stable, decay)
            or "plateau", which decreases the rate when `monitor` is not better any more.
        unit: the rate changes with each "step", or with each "epoch", as torchvision's and timm's
            programs do by default; `warmup_epochs` is a whole number then.
        min_lr: cosine, linear and wsd end at it; step, exponential and plateau do not go below.
        warmup_lr: where the warm-up begins; None: one step's share of `optimizer.lr`.
        warmup_prefix: whether the schedule begins after the warm-up; if not, it begins with the
            run, and the warm-up takes the place of its first part.
        decay_epochs, decay_rate: step and exponential multiply the rate by `decay_rate` in every
            `decay_epochs`: step at once, exponential gradually; plateau multiplies it by
            `decay_rate` too.
        patience: of plateau: how many evaluations in a row may be no better by at least 1/10,000.
        cooldown: the share of the schedule, at its end, in which wsd decreases the rate.
    """

    name: str = option(
        "cosine",
        check_choice,
        ("cosine", "linear", "constant", "step", "exponential", "wsd", "plateau"),
    )
    unit: str = option("step", check_choice, ("step", "epoch"))
    min_lr: float = option(0.0, check_number, 0)
    warmup_lr: float | None = option(None, check_number, 0)
    warmup_prefix: bool = True
    decay_epochs: float = option(30, check_number, 0.001)
    decay_rate: float = option(0.1, check_number, 0, 1)
    patience: int = option(10, check_int, 0)
    cooldown: float = option(0.2, check_number, 0, 1)

    def __post_init__(self) -> None:
        check_options(self)


@dataclass(kw_only=True, slots=True)
class MixingConfig:
    """MixUp and CutMix of the training images; docs/augmentation.md. With both alphas, one of the
    two is drawn for each batch.

    Attributes:
        mixup_alpha, cutmix_alpha: λ is drawn from Beta(alpha, alpha); 0: off.
        probability: the probability that a batch is mixed.
    """

    mixup_alpha: float = option(0.0, check_number, 0)
    cutmix_alpha: float = option(0.0, check_number, 0)
    probability: float = option(1.0, check_number, 0, 1)

    def __post_init__(self) -> None:
        check_options(self)


LOGGERS = ("tensorboard", "wandb", "mlflow", "csv")


def logger_names(value: str | list[str] | None) -> list[str]:
    return [] if value is None else [value] if isinstance(value, str) else list(value)


def check_logger(name: str, value: Any) -> None:
    for each in logger_names(value):
        check_choice(name, each, (*LOGGERS, None))


@dataclass(kw_only=True, slots=True)
class TrainConfig:
    """dali-pipes train.

    Attributes:
        sampling: which samples make an epoch, and in which order (docs/sampling.md); None: every
            image once, in a new order each epoch.
        function: a function of yours, module:name, that is called with these options and the
            training images, and returns an object with step(batch), which returns the loss, and
            evaluate(batch), if it has that (docs/training.md); None: the network of `model` learns
            the labels.
        validation: "data", what `data` names; "split:0.1", that share of the training images, drawn
            with `seed`; "none".
        eval_with: "eval_transform", or "transform" with its draws of one epoch, for tasks that
            evaluate what they train on, such as views.
        evaluate_every: epochs from one evaluation to the next; the last epoch is always evaluated.
        monitor: what says which epoch is the best, a column of epochs.csv such as val_loss; None:
            the task's own, top1, map or mae, or val_loss for a function.
        monitor_mode: "max" or "min", if more or less of `monitor` is better; None: known for what
            this program measures itself.
        patience: training ends when so many evaluations in a row were not better than the best;
            None: it goes on.
        epochs: epochs of training, including the warm-up.
        warmup_epochs: epochs in which the learning rate rises linearly to `optimizer.lr`; then it
            follows `schedule`.
        batch_size: images per rank and forward pass; the global batch is batch_size × accumulate ×
            ranks.
        eval_batch_size: images per rank when evaluating.
        accumulate: forward passes per optimizer step.
        precision: "fp32", "bf16" or "fp16" (autocast, the latter with gradient scaling).
        label_smoothing: the share of the label's weight that is spread evenly over all classes, in
            the losses "cross_entropy" and "bce" of one class each.
        ema_decay: decay of an exponential moving average of the weights, which is then evaluated;
            None: no average.
        seed: for the initial weights, the order of the samples and all random draws.
        on_bad_sample: "raise" stops with an error that names the bad image; "substitute" takes
            another of its batch.
        max_bad_fraction: the share of the images that may be bad: those that the scan finds, and
            with "substitute" those that are found while training.
        strict: images and objects that the scan leaves out end the program with status 1.
        resume: "auto" resumes from `out`/last.pt if there is one; a path resumes from that file;
            None starts from scratch.
        checkpoint_every_s: seconds between checkpoints within an epoch; there is always one after
            every epoch.
        logger: what gets the figures of epochs.csv and steps.csv besides: "tensorboard", "wandb",
            "mlflow", or a list of them; "csv": nothing does (docs/training.md).
        logger_options: arguments of these loggers by their names, such as
            logger_options.wandb.project=birds.
        heartbeat: a file whose modification time is set at every step, and which is removed at the
            end; None: no such file.
        trace: names what the loader does in the traces of Nsight Systems and torch.profiler
            (docs/diagnose.md).
        eval_only: evaluates `checkpoint`, and trains nothing.
        checkpoint: a file that training wrote.
        out: folder of the run; None: a new one under runs/train.
        overrides: what was given on the command line.
    """

    data: DataConfig = field(default_factory=DataConfig)
    transform: Any = None
    eval_transform: Any = None
    sampling: Any = None
    loader: Any = None
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    mixing: MixingConfig = field(default_factory=MixingConfig)
    task: TaskConfig = field(default_factory=TaskConfig)
    function: str | None = None
    validation: str = option(FROM_DATA, check_validation)
    eval_with: str = option("eval_transform", check_choice, ("eval_transform", "transform"))
    evaluate_every: int = option(1, check_int, 1)
    monitor: str | None = None
    monitor_mode: str | None = option(None, check_choice, (None, "max", "min"))
    patience: int | None = option(None, check_int, 1)
    epochs: int = option(90, check_int, 1)
    warmup_epochs: float = option(5, check_number, 0)
    batch_size: int = option(64, check_int, 1)
    eval_batch_size: int = option(128, check_int, 1)
    accumulate: int = option(1, check_int, 1)
    precision: str = option("fp32", check_choice, ("fp32", "bf16", "fp16"))
    label_smoothing: float = option(0.0, check_number, 0, 1)
    ema_decay: float | None = option(None, check_number, 0, 0.9999999)
    seed: int = option(0, check_int, 0, 2**63 - 1)
    on_bad_sample: str = option("raise", check_choice, ("raise", "substitute"))
    max_bad_fraction: float = option(0.001, check_number, 0, 1)
    strict: bool = False
    resume: str | None = None
    checkpoint_every_s: float | None = option(600, check_number, 0)
    logger: Any = option("tensorboard", check_logger)
    logger_options: dict[str, Any] = field(default_factory=dict)
    heartbeat: str | None = None
    trace: bool = False
    eval_only: bool = False
    checkpoint: str | None = None
    out: str | None = None
    overrides: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_options(self)

        if self.function:
            self._check_own()
        else:
            self._check_transforms()

        channels = {
            transform.channels for transform in (self.transform, self.eval_transform) if transform
        }
        if len(channels) > 1:
            raise ConfigError(
                f"transform.channels is {self.transform.channels}, and eval_transform.channels is "
                f"{self.eval_transform.channels}; a network has the same in both"
            )

        if self.schedule.unit == "epoch" and self.warmup_epochs % 1:
            raise ConfigError(
                f"warmup_epochs is {self.warmup_epochs:g}, and with schedule.unit=epoch the rate "
                "changes between two epochs only; take a whole number of epochs, or "
                "schedule.unit=step"
            )

        if self.eval_only != (self.checkpoint is not None):
            raise ConfigError(
                "eval_only=true and checkpoint=FILE go together; to continue training use "
                "resume=FILE"
            )

    def _check_transforms(self) -> None:
        if self.eval_with != "eval_transform":
            raise ConfigError(
                "eval_with=transform is for tasks of yours, function=my_train:make; a network of "
                "model= is evaluated with eval_transform"
            )
        for transform in (self.transform, self.eval_transform):
            if transform is not None and transform.dtype == "uint8":
                raise ConfigError(
                    "transform.dtype=uint8 is not normalized and cannot be trained on; use "
                    "fp32, fp16 or bf16"
                )
            if transform is not None and len(views_of(transform)) > 1:
                raise ConfigError(
                    "the transform makes several views, and the network of model= takes one; a "
                    "task of yours can train on them: function=my_train:make (docs/training.md)"
                )

    def _check_own(self) -> None:
        model, task = self.model, self.task
        given = {
            "model.function": model.function,
            "model.options": model.options,
            "model.weights": model.weights,
            "model.freeze": model.freeze,
            "model.compile": model.compile,
            "task.name": task.name,
            "task.loss": task.loss,
            "task.class_weights": task.class_weights,
            "task.pos_weight": task.pos_weight,
            "task.focal_gamma": task.focal_gamma != FOCAL_GAMMA,
            "task.target_threshold": task.target_threshold is not None,
            "label_smoothing": self.label_smoothing,
        }
        if left := [name for name, value in given.items() if value]:
            raise ConfigError(
                f"{left[0]} is for the network and the loss of this program, and function="
                f"{self.function} makes its own; leave it out"
            )
