"""Every option of every group composes into its typed schema, and wrong values are refused by
name.
"""

import re
from pathlib import Path

import command
import gpu_check.config
import pytest
from built_in_options import list_options
from gpu_check.config import GpuCheckConfig
from hydra import initialize_config_dir
from hydra.errors import ConfigCompositionException, MissingConfigException

import dali_pipes as dp
from dali_pipes.cli.conf import register
from dali_pipes.cli.named_options import NAMED_OPTIONS
from dali_pipes.measure.arms import DaliNativeConfig, DecodingConfig, SyntheticConfig
from dali_pipes.tools.benchmark.config import BenchmarkConfig
from dali_pipes.tools.diagnosis.config import DiagnoseConfig
from dali_pipes.tools.doctor.config import DoctorConfig
from dali_pipes.tools.preparation.config import PrepareConfig
from dali_pipes.tools.preview.run import PreviewConfig
from dali_pipes.tools.scan.run import ScanConfig
from dali_pipes.training.config import MixingConfig, OptimizerConfig, TrainConfig

CONF = Path(__file__).parents[2] / "conf"
JOBS = {
    "scan": ScanConfig,
    "preview": PreviewConfig,
    "benchmark": BenchmarkConfig,
    "train": TrainConfig,
    "diagnose": DiagnoseConfig,
    "doctor": DoctorConfig,
    "prepare": PrepareConfig,
    "gpu_check": GpuCheckConfig,
}
NEEDED = {
    "prepare": ["out=made", "resize=64"],
}
OPTION_NEEDS = {
    "weighted": ["sampling.weights=loss"],
    "schedule": ["sampling.schedule={0: balanced}"],
}
# whose evaluation would have their size and resize=256
NOT_OF_TRAIN = ("views", "two_views", "ten_crop", "iou_crop", "letterbox", "scale_jitter")
# groups of which a benchmark has several options at once, each in a place of its own
PLACES = {"loader": "torch", "arm": "synthetic"}
FOLDERS = {folder.name for folder in CONF.iterdir() if folder.is_dir()}
GROUPS = sorted(FOLDERS | NAMED_OPTIONS.keys())
OPTIONS = [(group, name) for group in GROUPS for name in list_options(group)]


@pytest.fixture(scope="module", autouse=True)
def hydra():
    register()
    gpu_check.config.register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        yield


def composed(job, *overrides):
    return command.composed(job, [*NEEDED.get(job, []), *overrides])


def jobs_of(group):
    """The jobs whose defaults name this group."""
    return [
        job
        for job in JOBS
        if f"{group}:" in (CONF / f"{job}.yaml").read_text()
        or f"{group}@" in (CONF / f"{job}.yaml").read_text()
    ]


def test_every_file_in_conf_is_known():
    assert sorted(file.stem for file in CONF.glob("*.yaml")) == sorted([*JOBS, "job"])
    assert GROUPS == [
        "arm",
        "cluster",
        "data",
        "experiment",
        "loader",
        "model",
        "optimizer",
        "sampling",
        "schedule",
        "transform",
    ]


@pytest.mark.few
@pytest.mark.parametrize("job", JOBS)
def test_jobs_compose_into_their_schema(job):
    assert isinstance(composed(job), JOBS[job])


@pytest.mark.few
@pytest.mark.parametrize("group", GROUPS)
def test_no_choice_that_does_not_exist_is_left_out_without_a_word(group):
    places = {
        job: re.findall(rf"^  - (?:optional )?({group}(?:@[\w.]+)?):", text, re.MULTILINE)
        for job in jobs_of(group)
        if (text := (CONF / f"{job}.yaml").read_text())
    }
    assert any(places.values())
    for job, named in places.items():
        for place in named:
            with pytest.raises(MissingConfigException, match=f"{group}/no_such"):
                composed(job, f"{place}=no_such")


@pytest.mark.few(12)
@pytest.mark.slow
@pytest.mark.parametrize(("group", "option"), OPTIONS)
def test_every_option_of_every_group_composes(group, option):
    recipe = group == "experiment" and "\nepochs: " in (CONF / f"{group}/{option}.yaml").read_text()
    jobs = ["train"] if recipe else jobs_of(group)
    training = {job for job in jobs if issubclass(JOBS[job], TrainConfig)}
    for job in set(jobs) - training if option in NOT_OF_TRAIN else jobs:
        override = (
            f"{group}@loaders.{PLACES[group]}={option}"
            if job == "benchmark" and group in PLACES
            else f"{group}={option}"
        )
        assert isinstance(composed(job, override, *OPTION_NEEDS.get(option, [])), JOBS[job])


def test_views_of_the_command_line():
    def views(*words):
        return composed("preview", "transform=views", *words).transform.views

    assert {name: len(each) for name, each in views().items()} == {"global": 2, "local": 8}
    assert views("transform.views=[{name: pair, count: 2, size: 32}]") == {
        "pair": [{"size": 32}] * 2
    }


@pytest.mark.slow
def test_samplings_of_the_command_line():
    def sampling(*words):
        return composed("train", *words).sampling

    assert sampling() is None and sampling(
        "sampling=uniform", "sampling.epoch_size=50"
    ) == dp.Uniform(epoch_size=50)
    assert sampling("sampling=weighted", "sampling.weights={cat: 1, dog: 2.5}").weights == {
        "cat": 1,
        "dog": 2.5,
    }
    assert sampling("sampling=weighted", "sampling.weights=loss") == dp.Weighted(weights="loss")
    assert sampling("sampling=per_class", "sampling.samples=2") == dp.PerClass(samples=2)
    assert sampling("sampling=windows", "sampling.lanes=4", "sampling.window_gb=20") == dp.Windows(
        lanes=4, window_gb=20
    )
    schedule = sampling(
        "sampling=schedule", "sampling.schedule={0: balanced, 10: {name: weighted, weights: loss}}"
    )
    assert schedule == dp.Schedule(schedule={0: dp.Balanced(), 10: dp.Weighted(weights="loss")})
    with pytest.raises(dp.ConfigError, match="begins with that of epoch 0"):
        sampling("sampling=schedule")
    with pytest.raises(dp.ConfigError, match="weights is missing"):
        sampling("sampling=weighted")


@pytest.mark.parametrize("job", ["train", "diagnose", "preview"])
def test_gray_images_need_one_line_only(job):
    """The line of docs/pixels.md, in every job that takes a transform."""
    line = re.search(
        r"it is `(transform\.channels=1 [^`]*)`", (CONF.parent / "docs/pixels.md").read_text()
    )
    given = composed(job, *line[1].split())
    evaluation = getattr(given, "eval_transform", given.transform)
    for transform in (given.transform, evaluation):
        assert (transform.channels, transform.mean, transform.std) == (1, (0.5,), (0.5,))


def test_sizes_are_numbers_or_pairs():
    """What Hydra hands over are lists."""
    given = composed(
        "train",
        "transform.size=[128,160]",
        "transform.sizes={2:[64,80]}",
        "transform.interpolation=bicubic",
    )
    assert (given.transform.size, given.transform.sizes, given.transform.shape) == (
        (128, 160),
        {2: (64, 80)},
        (128, 160),
    )
    assert given.eval_transform.size == (128, 160) and dp.TrainTransform(size=[96, 96]).size == 96
    whole = dp.EvalTransform(size=(9, 8), resize=[9, 8])
    assert whole.resize == (9, 8) and not whole.crops
    crop = composed(
        "train", "transform=cifar", "transform.padding=[1,2]", "transform.resize=null"
    ).transform
    assert (type(crop), crop.size, crop.padding, crop.resize) == (
        dp.RandomCropTransform,
        32,
        (1, 2),
        None,
    )
    assert composed("train", "transform=cifar").transform == dp.RandomCropTransform(
        resize=(32, 32), padding=4, mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)
    )
    assert composed("benchmark", "transform=eval", "transform.resize=null").transform.resize is None


def test_sizes_are_given_as_a_mapping():
    assert composed("preview", "transform.sizes={0:64,5:96}").transform.sizes == {0: 64, 5: 96}
    assert composed("train", "transform=cifar", "transform.sizes={1:40}").transform.sizes == {1: 40}
    with pytest.raises(ConfigCompositionException):
        composed("preview", "transform.sizs={0:64}")


@pytest.mark.slow
def test_the_toggle():
    """Every option `loader`, and the config that it is."""
    configs = {
        name: composed("preview", f"loader={name}").loader
        for group, name in OPTIONS
        if group == "loader"
    }
    assert configs == {
        "auto": dp.AutoConfig(),
        "dali": dp.DaliConfig(),
        "dali_cpu": dp.DaliConfig(device="cpu"),
        "dali_fastest": dp.DaliConfig(jpeg_fancy_upsampling=False),
        "torch": dp.TorchConfig(),
        "torch_auto": dp.TorchConfig(decoder="auto"),
        "torch_torchvision": dp.TorchConfig(decoder="torchvision"),
    }


def test_the_arms():
    """Every option `arm`, and the config that it is; a benchmark has it under its name."""
    loaders = composed("benchmark").loaders
    assert {name: loaders[name] for group, name in OPTIONS if group == "arm"} == {
        "dali_native": DaliNativeConfig(),
        "dali_native_fancy": DaliNativeConfig(decode="auto", jpeg_fancy_upsampling=True),
        "decode_regions": DecodingConfig(),
        "decode_whole": DecodingConfig(decode="whole"),
        "synthetic": SyntheticConfig(),
    }


@pytest.mark.slow
def test_experiments_set_what_they_say():
    config = composed("preview", "experiment=imagenet_gpu")
    assert (config.batch_size, config.transform.dtype, config.transform.memory_format) == (
        256,
        "fp16",
        "channels_last",
    )
    fastest = composed("train", "experiment=imagenet_gpu_fastest", "data.root=x")
    assert (fastest.batch_size, fastest.transform.dtype) == (256, "fp16")
    assert fastest.loader == composed("preview", "loader=dali_fastest").loader
    assert (
        composed("preview", "experiment=imagenet_gpu_fastest", "loader=torch").loader
        == dp.TorchConfig()
    )
    assert composed("benchmark", "experiment=quick").transform.size == 96


@pytest.mark.slow
def test_recipes_of_training():
    demo, short = (
        composed("train", f"experiment={name}")
        for name in ("demo_resnet18", "imagenet_resnet50_short")
    )
    assert (
        demo.model.name == "resnet18"
        and demo.data.root.endswith("data/demo")
        and demo.transform.size == demo.eval_transform.size
    )
    assert (short.epochs, short.transform.size, short.eval_transform.size, short.precision) == (
        36,
        176,
        224,
        "bf16",
    )
    assert (
        short.eval_transform.dtype == short.transform.dtype == "fp16" and short.optimizer.nesterov
    )
    assert composed("train", "model.name=vit_b_16").model.name == "vit_b_16"
    assert composed("train", "optimizer=adamw").optimizer.lr_batch_size is None
    assert composed("train", "mixing.mixup_alpha=0.2").mixing == MixingConfig(mixup_alpha=0.2)
    assert composed("train", "cluster=slurm").resume == "auto"


def test_defaults_in_conf_are_those_of_python():
    assert composed("preview", "transform=train").transform == dp.TrainTransform()
    assert composed("preview", "transform=eval").transform == dp.EvalTransform()


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: dp.DaliConfig(device="cuda"),
            "DaliConfig.device is 'cuda'; choose one of auto, gpu, cpu",
        ),
        (lambda: dp.DaliConfig(num_threads=0), "DaliConfig.num_threads is 0"),
        (lambda: dp.DaliConfig(hw_decoder_load=1.5), "DaliConfig.hw_decoder_load is 1.5"),
        (lambda: dp.DaliConfig(decode="crop"), "DaliConfig.decode is 'crop'"),
        (lambda: dp.TorchConfig(decoder="turbo"), "TorchConfig.decoder is 'turbo'"),
        (lambda: dp.TorchConfig(num_workers=-1), "TorchConfig.num_workers is -1"),
        (
            lambda: dp.TorchConfig(multiprocessing_context="thread"),
            "TorchConfig.multiprocessing_context is 'thread'",
        ),
        (
            lambda: composed("preview", "loader=dali_cpu", "loader.num_threads=-2"),
            "DaliConfig.num_threads is -2",
        ),
        (lambda: dp.TrainTransform(size=0), "TrainTransform.size is 0"),
        (
            lambda: dp.TrainTransform(dtype="fp8"),
            "TrainTransform.dtype is 'fp8'; choose one of fp32, fp16, bf16, uint8",
        ),
        (lambda: dp.TrainTransform(memory_format="NHWC"), "TrainTransform.memory_format is 'NHWC'"),
        (lambda: dp.TrainTransform(mean=(0.5,)), "TrainTransform.mean is"),
        (lambda: dp.TrainTransform(std=(0.5, 0, 0.5)), "must be positive"),
        (lambda: dp.TrainTransform(scale=(1, 0.5)), "TrainTransform.scale is"),
        (lambda: dp.TrainTransform(flip=2), "TrainTransform.flip is 2"),
        (lambda: dp.EvalTransform(resize=200), "resize is 200, less than the size of 224"),
        (
            lambda: dp.EvalTransform(resize=(32, 32), size=64),
            r"resize is \(32, 32\), less than the size of 64",
        ),
        (
            lambda: dp.EvalTransform(resize=(64, 32), size=(64, 48)),
            r"resize is \(64, 32\), less than the size of \(64, 48\)",
        ),
        (
            lambda: dp.CenterCropTransform(resize=32, size=64),
            "resize is 32, less than the size of 64.*pad_if_needed",
        ),
        (
            lambda: BenchmarkConfig(loaders={"torch": 1}, arms=["torch", "dalli"]),
            "an arm is 'dalli'; choose one of torch",
        ),
        (lambda: BenchmarkConfig(loaders={"torch": 1}, arms=[]), "name at least one loader"),
        (
            lambda: TrainConfig(epochs=0),
            "TrainConfig.epochs is 0; it takes whole numbers from 1 on",
        ),
        (
            lambda: TrainConfig(precision="fp8"),
            "TrainConfig.precision is 'fp8'; choose one of fp32, bf16, fp16",
        ),
        (
            lambda: TrainConfig(transform=dp.ViewsTransform(views={"a": {"count": 2}})),
            "makes several views, and the network of model= takes one",
        ),
        (lambda: TrainConfig(eval_only=True), "eval_only=true and checkpoint=FILE go together"),
        (
            lambda: TrainConfig(transform=dp.TrainTransform(dtype="uint8")),
            "dtype=uint8 is not normalized",
        ),
        (
            lambda: OptimizerConfig(nesterov=True, momentum=0),
            "OptimizerConfig.nesterov needs a momentum greater than 0",
        ),
        (lambda: OptimizerConfig(beta2=1), "OptimizerConfig.beta2 is 1"),
        (lambda: OptimizerConfig(name="adagrad"), "OptimizerConfig.name is 'adagrad'"),
        (
            lambda: MixingConfig(cutmix_alpha=-1),
            "MixingConfig.cutmix_alpha is -1; it takes numbers from 0 on",
        ),
        (
            lambda: composed("train", "mixing.probability=2"),
            "MixingConfig.probability is 2.0; it takes numbers from 0 to 1",
        ),
        (lambda: dp.TrainTransform(size="128"), "TrainTransform.size is '128'"),
        (lambda: dp.TrainTransform(size=None), "TrainTransform.size is None"),
        (
            lambda: dp.TrainTransform(std=(float("nan"),) * 3),
            r"std is \[nan, nan, nan\]; it takes three finite numbers",
        ),
        (lambda: dp.RandomCropTransform(padding=-1), "RandomCropTransform.padding is -1"),
        (
            lambda: dp.RandomCropTransform(padding=(1, 2, 3)),
            r"one, or \(left/right, top/bottom\) or \(left, top, right, bottom\)",
        ),
        (
            lambda: dp.RandomCropTransform(resize=0),
            r"resize is 0; it takes whole numbers from 1 on: one, or \(height, width\)",
        ),
        (
            lambda: dp.RandomCropTransform(size=(8, 8, 8)),
            r"RandomCropTransform.size is \(8, 8, 8\); it takes whole numbers from 1",
        ),
        (lambda: dp.TrainTransform(size=(224, True)), r"TrainTransform.size is \(224, True\)"),
        (lambda: dp.TrainTransform(size=[]), r"TrainTransform.size is \[\]"),
        (lambda: dp.TrainTransform(size=2.0), "TrainTransform.size is 2.0"),
        (
            lambda: dp.TrainTransform(vertical_flip=-0.1),
            "TrainTransform.vertical_flip is -0.1; it takes numbers from 0 to 1",
        ),
        (
            lambda: dp.TrainTransform(interpolation="nearest"),
            "interpolation is 'nearest'; choose one of bilinear, bicubic, nearest-",
        ),
        (
            lambda: dp.EvalTransform(size=(300, 260)),
            r"resize is 256, less than the size of \(300, 260\)",
        ),
        (lambda: dp.EvalTransform(resize="256"), "EvalTransform.resize is '256'"),
        (
            lambda: dp.TrainTransform(size=(224, 4), augment=["GaussianBlur"]),
            "too large for images of 4",
        ),
        (
            lambda: composed("train", "transform.augment=[Trivial]"),
            "'Trivial' is none of TrivialAugmentWide",
        ),
        (
            lambda: composed("benchmark", "transform.sizes={0:64}"),
            "transform.sizes changes the work",
        ),
        (
            lambda: composed("benchmark", "transform=views", "workload=train"),
            "the first of several views only",
        ),
        (
            lambda: composed("diagnose", "transform.sizes={0:64}"),
            "transform.sizes changes the work",
        ),
        (
            lambda: composed("diagnose", "function=my_train:make"),
            "function=my_train:make is for dali-pipes train",
        ),
        (lambda: PreviewConfig(split="test"), "split is 'test'"),
        (lambda: ScanConfig().data.source("train"), r"set data\.train=DIR"),
    ],
)
def test_wrong_values_are_refused_by_name(build, message):
    with pytest.raises(dp.ConfigError, match=message):
        build()
