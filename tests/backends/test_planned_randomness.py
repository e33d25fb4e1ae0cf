"""What a function of the user's draws from PyTorch comes from the plan, however it is called."""

import threading

import pytest
import torch

import dali_pipes as dp
from dali_pipes.backends.pixels.functions import _PlannedRandomness

LIKE = torch.full((3, 5), 0.5)
COUNT = torch.full((3, 5), 4.0)
RATES = torch.full((5,), 2.0)

# each takes `generator=…`, or nothing
BY_KEYWORD = {
    "rand": lambda **own: torch.rand(3, 5, **own),
    "rand size": lambda **own: torch.rand(size=(3, 5), dtype=None, device=None, **own),
    "rand float64": lambda **own: torch.rand((3, 5), dtype=torch.float64, **own),
    "rand out": lambda **own: torch.rand(3, 5, out=torch.empty(3, 5), **own),
    "rand out float64": lambda **own: torch.rand(
        (3, 5), out=torch.empty(0, dtype=torch.float64), **own
    ),
    "randn": lambda **own: torch.randn((3, 5), **own),
    "randint": lambda **own: torch.randint(9, (3, 5), **own),
    "randint low": lambda **own: torch.randint(2, 9, (3, 5), dtype=torch.uint8, **own),
    "randint by name": lambda **own: torch.randint(low=2, high=9, size=(3, 5), **own),
    "randperm": lambda **own: torch.randperm(15, **own),
    "normal": lambda **own: torch.normal(LIKE, COUNT, **own),
    "normal mean": lambda **own: torch.normal(LIKE, std=2, **own),
    "normal by name": lambda **own: torch.normal(mean=LIKE, std=COUNT, **own),
    "normal std": lambda **own: torch.normal(1.0, COUNT, **own),
    "normal size": lambda **own: torch.normal(1.0, 2.0, (3, 5), **own),
    "normal size by name": lambda **own: torch.normal(mean=1.0, std=2.0, size=(3, 5), **own),
    "normal out": lambda **own: torch.normal(LIKE, COUNT, out=torch.empty(3, 5), **own),
    "bernoulli": lambda **own: torch.bernoulli(LIKE, **own),
    "bernoulli by name": lambda **own: torch.bernoulli(input=LIKE, **own),
    "bernoulli p": lambda **own: torch.bernoulli(LIKE, 0.2, **own),
    "bernoulli method": lambda **own: LIKE.bernoulli(**own),
    "multinomial": lambda **own: torch.multinomial(RATES, 3, **own),
    "multinomial by name": lambda **own: torch.multinomial(RATES, num_samples=3, **own),
    "multinomial method": lambda **own: RATES.multinomial(9, True, **own),
    "poisson": lambda **own: torch.poisson(RATES, **own),
    "binomial": lambda **own: torch.binomial(COUNT, LIKE, **own),
    "standard_gamma": lambda **own: torch._standard_gamma(RATES, **own),
    "sample_dirichlet": lambda **own: torch._sample_dirichlet(RATES, **own),
    "uniform_": lambda **own: torch.empty(3, 5).uniform_(**own),
    "uniform_ range": lambda **own: torch.empty(3, 5).uniform_(-1, 1, **own),
    "uniform_ to": lambda **own: torch.empty(3, 5).uniform_(-1, to=1, **own),
    "normal_": lambda **own: torch.empty(3, 5).normal_(0, 1, **own),
    "normal_ by name": lambda **own: torch.empty(3, 5).normal_(mean=3, std=2, **own),
    "random_": lambda **own: torch.empty(3, 5).random_(**own),
    "random_ to": lambda **own: torch.empty(3, 5).random_(7, **own),
    "random_ from": lambda **own: torch.empty(3, 5, dtype=torch.int64).random_(3, None, **own),
    "bernoulli_": lambda **own: torch.empty(3, 5).bernoulli_(0.3, **own),
    "bernoulli_ tensor": lambda **own: torch.empty(3, 5).bernoulli_(LIKE, **own),
    "bernoulli_ by name": lambda **own: torch.empty(3, 5).bernoulli_(p=LIKE, **own),
    "exponential_": lambda **own: torch.empty(3, 5).exponential_(2.0, **own),
    "cauchy_": lambda **own: torch.empty(3, 5).cauchy_(0, 1, **own),
    "geometric_": lambda **own: torch.empty(3, 5).geometric_(0.5, **own),
    "log_normal_": lambda **own: torch.empty(3, 5).log_normal_(1, 2, **own),
    "nn.init.uniform_": lambda **own: torch.nn.init.uniform_(torch.empty(3, 5), -1, 1, **own),
    "nn.init.normal_": lambda **own: torch.nn.init.normal_(torch.empty(3, 5), std=2, **own),
    "nn.init.trunc_normal_": lambda **own: torch.nn.init.trunc_normal_(torch.empty(3, 5), **own),
}
# PyTorch's own have no generator, or not in all of its versions
LIKE_ANOTHER = {
    "rand_like": (lambda: torch.rand_like(LIKE), BY_KEYWORD["rand"]),
    "rand_like by name": (lambda: torch.rand_like(input=LIKE, dtype=None), BY_KEYWORD["rand"]),
    "rand_like float64": (
        lambda: torch.rand_like(LIKE, dtype=torch.float64, memory_format=None),
        BY_KEYWORD["rand float64"],
    ),
    "randn_like": (lambda: torch.randn_like(LIKE, device=None), BY_KEYWORD["randn"]),
    "randint_like": (lambda: torch.randint_like(LIKE.long(), 9), BY_KEYWORD["randint"]),
    "randint_like high": (lambda: torch.randint_like(LIKE.long(), high=9), BY_KEYWORD["randint"]),
    "randint_like low": (
        lambda: torch.randint_like(LIKE.byte(), 2, 9),
        BY_KEYWORD["randint low"],
    ),
    "randint_like low and high": (
        lambda: torch.randint_like(LIKE.byte(), 2, high=9),
        BY_KEYWORD["randint low"],
    ),
    "randint_like by name": (
        lambda: torch.randint_like(LIKE.byte(), low=2, high=9),
        BY_KEYWORD["randint low"],
    ),
}
# those that take a generator by its position too
BY_POSITION = {
    "poisson": lambda *own: torch.poisson(RATES, *own),
    "binomial": lambda *own: torch.binomial(COUNT, LIKE, *own),
    "standard_gamma": lambda *own: torch._standard_gamma(RATES, *own),
    "sample_dirichlet": lambda *own: torch._sample_dirichlet(RATES, *own),
    "rrelu": lambda *own: torch.rrelu(-LIKE, 0.1, 0.3, True, *own),
}
NOT_WITHOUT_A_GENERATOR = {"rrelu"}


def generator(seed=3):
    return torch.Generator().manual_seed(seed)


def planned(draw, seed=3):
    """What a function draws, and nothing of it from the program's generator."""
    before = torch.get_rng_state()
    with _PlannedRandomness(dp.Augment(draw), seed):
        drawn = draw()
    assert torch.equal(torch.get_rng_state(), before)
    return drawn


def is_same(one, other):
    return one.dtype == other.dtype and torch.equal(one, other)


def test_every_random_function_that_takes_a_generator_is_in_the_tables():
    schemas = [str(schema) for schema in torch._C._jit_get_all_schemas()]
    names = {
        schema.removeprefix("aten::").partition("(")[0].partition(".")[0]
        for schema in schemas
        if schema.startswith("aten::") and "Generator?" in schema
    }
    public = {name for name in names if hasattr(torch, name) or hasattr(torch.Tensor, name)}
    # `_fused_dropout` is PyTorch's own way on a GPU
    tested = " ".join([*BY_KEYWORD, *LIKE_ANOTHER, *BY_POSITION, *NETWORKS, "fused_dropout"])
    missing = {name for name in public if name.removeprefix("_") not in tested}
    assert len(public) > 20 and not missing


@pytest.mark.parametrize("name", BY_KEYWORD)
def test_a_generator_by_keyword(name):
    draw = BY_KEYWORD[name]
    expected = draw(generator=generator())
    assert is_same(planned(draw), expected)
    assert is_same(planned(lambda: draw(generator=None)), expected)
    # a generator of the function's own is its own affair
    assert is_same(planned(lambda: draw(generator=generator()), seed=4), expected)


@pytest.mark.parametrize("name", LIKE_ANOTHER)
def test_like_another_tensor(name):
    draw, expected = LIKE_ANOTHER[name]
    assert is_same(planned(draw), expected(generator=generator()))


@pytest.mark.parametrize("name", BY_POSITION)
def test_a_generator_by_position(name):
    draw = BY_POSITION[name]
    expected = draw(generator())
    assert is_same(planned(lambda: draw(generator()), seed=4), expected)
    if name in NOT_WITHOUT_A_GENERATOR:
        with pytest.raises(dp.ConfigError, match="calls rrelu, which takes no generator"):
            planned(lambda: draw(None))
    else:
        assert is_same(planned(lambda: draw(None)), expected)


OUT = {
    "rand": lambda **own: torch.rand(3, 5, **own),
    "randint": lambda **own: torch.randint(9, (3, 5), **own),
    "normal": lambda **own: torch.normal(LIKE, COUNT, **own),
}


@pytest.mark.parametrize("name", OUT)
def test_out_is_what_is_written_and_returned(name):
    out, draw = torch.empty(3, 5), OUT[name]
    assert planned(lambda: draw(out=out)) is out
    assert is_same(out, draw(generator=generator(), out=torch.empty(3, 5)))


ON_DEVICE = {
    "randint": lambda device, **own: torch.randint(9, (3, 5), device=device, **own),
    "randn out": lambda device, **own: torch.randn(3, 5, out=torch.empty(3, 5, device=device)),
    "poisson": lambda device, **own: torch.poisson(RATES.to(device), **own),
    "normal_": lambda device, **own: torch.empty(3, 5, device=device).normal_(0, 1, **own),
    "bernoulli_": lambda device, **own: torch.empty(3, 5, device=device).bernoulli_(
        p=LIKE.to(device), **own
    ),
}


@pytest.mark.needs_cuda
@pytest.mark.parametrize("name", ON_DEVICE)
def test_on_a_gpu_the_same_is_drawn(name):
    drawn = planned(lambda: ON_DEVICE[name]("cuda", generator=None))
    expected = planned(lambda: ON_DEVICE[name]("cpu", generator=None))
    assert drawn.is_cuda and is_same(drawn.cpu(), expected)


def test_a_function_for_batches_may_draw_from_a_generator_of_its_own_alone():
    for draw in (BY_KEYWORD["randint"], BY_KEYWORD["uniform_"], BY_KEYWORD["poisson"]):
        planned(lambda draw=draw: draw(generator=generator()), seed=None)
        for none in ({}, {"generator": None}):
            with pytest.raises(dp.ConfigError, match="whose numbers would depend on the batch"):
                planned(lambda draw=draw, none=none: draw(**none), seed=None)


NETWORKS = {
    "Dropout": torch.nn.Dropout(),
    "AlphaDropout": torch.nn.AlphaDropout(),
    "FeatureAlphaDropout": torch.nn.FeatureAlphaDropout(),
    "RReLU": torch.nn.RReLU(),
    "RReLU in place": torch.nn.RReLU(inplace=True),
    "functional.rrelu": torch.nn.functional.rrelu,
    "torch.rrelu": lambda image: torch.rrelu(image, 0.1, 0.3, False),
    "torch.rrelu_": lambda image: torch.rrelu_(image, training=False),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_what_does_not_train_draws_nothing(name):
    network = NETWORKS[name]
    if isinstance(network, torch.nn.Module):
        with pytest.raises(dp.ConfigError, match="which takes no generator"):
            planned(lambda: network.train()(-LIKE))
        network.eval()
    planned(lambda: network(-LIKE))


def test_distributions_and_threads():
    """As torchvision.transforms.v2 and torch.distributions draw, in several threads at once."""

    def draw():
        return torch.cat(
            [
                torch.rand(3),
                torch.distributions.Beta(1.0, 2.0).sample((2,)),
                torch.distributions.Uniform(0, 1).sample((2,)),
                torch.distributions.Normal(0, 1).sample((2,)),
                torch.distributions.Poisson(3.0).sample((2,)),
                torch.distributions.Binomial(3, torch.tensor(0.5)).sample((2,)),
                torch.distributions.Gamma(1.0, 2.0).sample((2,)),
                torch.distributions.Dirichlet(RATES).sample(),
                torch.distributions.Exponential(2.0).sample((2,)),
                torch.distributions.Cauchy(0.0, 1.0).sample((2,)),
            ]
        )

    expected = planned(draw)
    assert not torch.equal(expected, planned(draw, seed=4))

    def draw_planned():
        with _PlannedRandomness(dp.Augment(draw), 3):
            results.append(draw())

    results = []
    threads = [
        threading.Thread(target=lambda: [draw_planned() for _ in range(5)]) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    torch.rand(1000)  # the program's own draws go on meanwhile
    for thread in threads:
        thread.join()
    assert len(results) == 15 and all(torch.equal(result, expected) for result in results)
