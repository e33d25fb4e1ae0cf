import time
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from gpu_backends import simulated
from later import later
from torch.nn.functional import cross_entropy

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.training.config import ModelConfig, OptimizerConfig, TaskConfig, TrainConfig
from dali_pipes.training.log.meter import FETCHING, Meter
from dali_pipes.training.network.build import build_network
from dali_pipes.training.optimizing.recipe import build_ema, build_optimizer
from dali_pipes.training.step import Forward, Readback, TrainStep
from dali_pipes.training.tasks.evaluate import Sums
from dali_pipes.training.tasks.losses import LOSSES, Loss, build_loss
from dali_pipes.training.tasks.supervised import Classification

launching, trainer = later("dali_pipes.training.launch"), later("dali_pipes.training.trainer")
training = later("dali_pipes.training.run")

pytestmark = pytest.mark.needs_cuda


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_step_never_waits_for_the_gpu(precision, name, clip):
    config = TrainConfig(
        precision=precision,
        ema_decay=0.9,
        accumulate=2,
        label_smoothing=0.1,
        optimizer=OptimizerConfig(name=name, clip_grad_norm=clip),
    )
    fabric = launching.launch(precision)
    torch.manual_seed(0)
    module = build_network(ModelConfig(name="resnet18"), 10).to(fabric.device)
    loss = Loss(partial(cross_entropy, label_smoothing=config.label_smoothing), {})
    task = Classification(module, loss, 10).to(fabric.device)
    raw, ema = build_optimizer(config.optimizer, module), build_ema(config, task)
    model, optimizer = fabric.setup(Forward(task), raw)
    step, readback = (
        TrainStep(config, fabric, model, task, optimizer, ema),
        Readback(fabric.device),
    )
    count, side = (4, 32) if simulated() else (16, 64)
    images = torch.rand(count, 3, side, side, device=fabric.device, dtype=torch.float16)
    batch = dp.Batch(
        images,
        torch.arange(count, device=fabric.device) % 10,
        torch.arange(count, device=fabric.device),
    )
    for _ in range(3):  # what is allocated or chosen once
        readback.push(step(batch, 0.1))
    losses = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            losses += readback.push(step(batch, 0.1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(losses) == 5 and all(0 < loss < 100 for loss in losses)


def slow_batches(count, seconds, busy):
    for _ in range(count):
        # the simulated GPU works only while somebody asks
        event = torch.cuda.current_stream().record_event()
        while not busy and not event.query():
            pass
        time.sleep(seconds)
        yield dp.Batch(torch.zeros(4, 3, 2, 2), torch.zeros(4, dtype=torch.long), torch.arange(4))


@pytest.mark.parametrize("busy", [False, True])
def test_a_wait_counts_only_while_the_gpu_has_nothing_to_do(busy):
    meter = Meter(lambda: SimpleNamespace(**dict.fromkeys(FETCHING, 0)), torch.device("cuda"))
    torch.cuda.synchronize()
    meter.start()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in meter.watch(slow_batches(6, 0.1, busy)):
            if busy:
                torch.cuda._sleep(1_000_000_000)  # far longer than a batch takes
    finally:
        torch.cuda.set_sync_debug_mode("default")
    meter.stop()
    # nothing runs before the first batch, which is waited for in any case
    wait_s = meter.figures["wait_s"]
    assert 0.1 <= wait_s < 0.3 if busy else wait_s > 0.4


def test_counting_an_evaluation_never_waits_for_the_gpu():
    labels = torch.arange(16, device="cuda") % 10
    batch = dp.Batch(torch.rand(16, 3, 32, 32, device="cuda"), labels, labels)
    network = build_network(ModelConfig(name="resnet18"), 10).cuda()
    task = Classification(network, Loss(cross_entropy, {}), 10).eval()
    task.begin_evaluation()
    fabric, sums = launching.launch("fp32"), Sums(torch.device("cuda"), [task.metrics])
    with torch.no_grad():
        sums.add(task.evaluate(batch), 16)  # what is loaded once
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(5):
                sums.add(task.evaluate(batch), 16)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    task.end_evaluation()
    found = sums.over_ranks(fabric)
    assert found.images == 6 * 16 and 0 <= found.values["top1"] <= found.values["top5"] <= 1
    assert len(found.by_class["f1"]) == 10


@pytest.mark.parametrize(
    ("task", "loss"), [(task, loss) for task in LOSSES for loss in LOSSES[task]]
)
def test_no_loss_waits_for_the_gpu(task, loss):
    scores = torch.rand(16, 10, device="cuda", requires_grad=True)
    hard = torch.arange(16, device="cuda") % 10
    labels = hard if task == "classification" else torch.rand(16, 10, device="cuda").round()
    weights = {} if task == "regression" else {"class_weights": [1.0] * 10}
    images = SimpleNamespace(classes=[*"abcdefghij"])
    function = build_loss(TaskConfig(loss=loss, **weights), task, 0.0, images).cuda()
    function(scores, labels).backward()  # what is loaded once
    torch.cuda.set_sync_debug_mode("error")
    try:
        function(scores, labels).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("fraction", [0.0005, 0.002, 0.004])
def test_running_out_of_memory_is_reported_with_a_snapshot(
    fraction, image_folder, tmp_path, monkeypatch
):
    """Wherever it happens: where the network is built, where the optimizer is, in a step."""
    monkeypatch.setattr("dali_pipes.training.run.check_memory", lambda *_: None)
    torch.cuda.set_per_process_memory_fraction(fraction)
    options = {
        "data": DataConfig(train=str(image_folder), val=str(image_folder)),
        "transform": dp.TrainTransform(),
    }
    try:
        with pytest.raises(
            trainer.TrainingError,
            match=r"the GPU has no memory left .* PyTorch holds .* What PyTorch holds is in",
        ):
            training.train(
                TrainConfig(
                    **options,
                    eval_transform=dp.EvalTransform(),
                    loader=dp.DaliConfig(),
                    batch_size=37,
                    out=str(tmp_path),
                )
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert (tmp_path / "out_of_memory_rank0.pickle").stat().st_size


@pytest.mark.parametrize("nesterov", [False, True])
def test_an_overflow_in_the_first_step_changes_nothing(nesterov):
    """As without the fused optimizer, which is told of it by a tensor."""
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 0.0}
    ours, plain = (torch.nn.Linear(1000, 10, device="cuda") for _ in range(2))
    plain.load_state_dict(ours.state_dict())
    optimizers = (
        build_optimizer(OptimizerConfig(**options), ours),
        torch.optim.SGD(plain.parameters(), **options),
    )
    for module, optimizer in zip((ours, plain), optimizers, strict=True):
        scaler = torch.amp.GradScaler("cuda")
        for gradient in (float("inf"), 1.0, 2.0):
            loss = sum(each.sum() for each in module.parameters())
            scaler.scale(gradient * loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert torch.allclose(ours.weight, plain.weight) and torch.allclose(ours.bias, plain.bias)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", "bf16"), ("bf16", "fp16"), ("fp16", "fp16")]
)
def test_a_run_on_the_gpu(image_folder, tmp_path, capsys, precision, dtype):
    """Decoded, transformed and learned from on the GPU; stopped and gone on with by resume=auto."""
    options = {
        "data": DataConfig(train=str(image_folder), val=str(image_folder)),
        "transform": dp.TrainTransform(size=64, dtype=dtype, memory_format="channels_last"),
        "eval_transform": dp.EvalTransform(
            size=64, resize=72, dtype=dtype, memory_format="channels_last"
        ),
        # Without DALI's kernels the loss is not a number; a DataLoader's images are real there.
        "loader": dp.TorchConfig(num_workers=1) if simulated() else dp.DaliConfig(device="gpu"),
        "model": ModelConfig(name="resnet18"),
        "precision": precision,
        "batch_size": 8,
        "warmup_epochs": 0,
        "out": str(tmp_path / "run"),
    }
    training.train(TrainConfig(epochs=1, **options))
    training.train(TrainConfig(epochs=2, resume="auto", **options))
    message = capsys.readouterr().out
    assert '"device": "cuda"' in message and '"epochs": 2' in message
    state = torch.load(tmp_path / "run/last.pt", weights_only=True)
    assert (state["scaler"] is not None) == (precision == "fp16") and len(state["history"]) == 2
