"""Which DataLoaders of a program migrate sees, and that the program works after the change."""

import json
import os
import subprocess
import sys
from pathlib import Path

import migrated_programs
import pytest

from dali_pipes.tools.migration.edits import Wish, propose
from dali_pipes.tools.migration.run import ProgramLoader

HEAD = """
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset
from torchvision import datasets, transforms as T

crop = T.Compose([T.RandomResizedCrop(32), T.ToTensor()])
center = T.Compose([T.Resize(40), T.CenterCrop(32), T.ToTensor()])
train_set = datasets.ImageFolder({images!r}, crop)
val_set = datasets.ImageFolder({images!r}, center)

class Stream(IterableDataset):
    def __iter__(self):
        yield from (val_set[at] for at in range(8))

stream = Stream()  # what cannot be carried over
model = torch.nn.Linear(4, 1)

def make_optimizer():
    return torch.optim.SGD(model.parameters(), 0.1)

def evaluate(loader):
    for images, labels in loader:
        model(images[:, 0, 0, :4])

def train(loader, optimizer):
    for images, labels in loader:
        model(images[:, 0, 0, :4]).sum().backward()
        optimizer.step()
"""
# the program; what feeds its loops after the change; the number of the DataLoader that trains
PROGRAMS = {
    "two loaders": (
        """
optimizer = make_optimizer()
train_loader = DataLoader(train_set, 8, shuffle=True)
val_loader = DataLoader(val_set, 8)
train(train_loader, optimizer)
evaluate(val_loader)
""",
        ["ours", "ours"],
        1,
    ),
    "enumerate and tqdm": (
        """
from tqdm import tqdm
optimizer = make_optimizer()
loader = DataLoader(train_set, 8, shuffle=True)
for step, (images, labels) in enumerate(tqdm(loader, total=len(loader))):
    optimizer.step()
""",
        ["ours"],
        1,
    ),
    "an evaluation first": (
        """
val_loader = DataLoader(val_set, 8)
optimizer = make_optimizer()
evaluate(val_loader)
train_loader = DataLoader(train_set, 8, shuffle=True)
train(train_loader, optimizer)
""",
        ["ours", "ours"],
        2,
    ),
    "a mean first": (
        """
def mean_of(dataset):
    return sum(images.mean() for images, _ in DataLoader(dataset, 8, shuffle=True))
mean = mean_of(val_set)
train_loader = DataLoader(train_set, 8, shuffle=True)
train(train_loader, make_optimizer())
""",
        ["theirs", "ours"],
        2,
    ),
    "in order": (
        """
train_loader = DataLoader(train_set, 8)
train(train_loader, make_optimizer())
""",
        ["ours"],
        1,
    ),
    "made in a function": (
        """
def make_loader(dataset, **options):
    return DataLoader(dataset, batch_size=8, **options)

class Trainer:
    def __init__(self):
        self.optimizer = make_optimizer()
        self.train_loader = make_loader(train_set, shuffle=True)
        self.val_loader = make_loader(val_set)

    def fit(self):
        train(self.train_loader, self.optimizer)
        evaluate(self.val_loader)

Trainer().fit()
""",
        ["ours", "ours"],
        1,
    ),
    "made in a function that one of them must not leave": (
        """
def make_loader(dataset, **options):
    return DataLoader(dataset, batch_size=8, **options)

class Trainer:
    def __init__(self):
        self.optimizer = make_optimizer()
        self.train_loader = make_loader(train_set, shuffle=True)
        self.val_loader = make_loader(stream)

    def fit(self):
        train(self.train_loader, self.optimizer)
        evaluate(self.val_loader)

Trainer().fit()
""",
        ["ours", "theirs"],
        1,
    ),
    "names of a tuple": (
        """
def make_loaders():
    kinds = {"shuffle": True}, {"shuffle": False}
    loaders = [DataLoader(data, 8, **kind) for data, kind in zip((train_set, stream), kinds)]
    return loaders[0], loaders[1]

train_loader, val_loader = make_loaders()
train(train_loader, make_optimizer())
evaluate(val_loader)
""",
        ["ours", "theirs"],
        1,
    ),
    "a dict of them": (
        """
sets = {"train": train_set, "val": val_set}
loaders = {name: DataLoader(sets[name], 8, shuffle=name == "train") for name in sets}
train(loaders["train"], make_optimizer())
evaluate(loaders["val"])
""",
        ["ours", "ours"],
        1,
    ),
    "a dict of which one stays": (
        """
def main():
    sets = {"train": train_set, "val": stream}
    loaders = {name: DataLoader(sets[name], 8, shuffle=name == "train") for name in sets}
    train(loaders["train"], make_optimizer())
    evaluate(loaders["val"])

if __name__ == "__main__":
    main()
""",
        ["ours", "theirs"],
        1,
    ),
    "one line": (
        """
if True: train_loader, optimizer = DataLoader(train_set, 8, shuffle=True), make_optimizer()
train(train_loader, optimizer)
""",
        ["ours"],
        1,
    ),
    "an epoch is set": (
        """
def main():
    sampler = DistributedSampler(train_set, num_replicas=1, rank=0)
    optimizer = make_optimizer()
    loader = DataLoader(train_set, 8, sampler=sampler, drop_last=True)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        train(loader, optimizer)

main()
""",
        ["epoch 0", "ours", "epoch 1", "ours"],
        1,
    ),
    "an epoch of batches is set": (
        """
class Batches:
    batch_size, drop_last, epoch = 8, True, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(train_set) // 8

    def __iter__(self):
        order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(self.epoch))
        return iter([each.tolist() for each in order.split(8)][: len(self)])

batches = Batches()
loader = DataLoader(train_set, batch_sampler=batches)
optimizer = make_optimizer()
for epoch in range(2):
    batches.set_epoch(epoch)
    train(loader, optimizer)
""",
        ["epoch 0", "ours", "epoch 1", "ours"],
        1,
    ),
    "a subclass and a thread": (
        """
import threading

class Loader(DataLoader):
    def __init__(self, dataset):
        super().__init__(dataset, batch_size=8, shuffle=True)

loader = Loader(train_set)
thread = threading.Thread(target=train, args=(loader, make_optimizer()))
thread.start()
thread.join()
""",
        ["ours"],
        1,
    ),
    "no optimizer": (
        """
loader = DataLoader(val_set, 8)
evaluate(loader)
""",
        ["ours"],
        1,
    ),
    "dp is taken": (
        """
dp = torch.nn.DataParallel(model)
loader = DataLoader(train_set, 8, shuffle=True)
train(loader, make_optimizer())
""",
        ["ours"],
        1,
    ),
}


OWN_STEP = """
import random
from PIL import ImageFilter


class Blur:
    def __call__(self, image):
        return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2)))


steps = T.Compose([T.RandomResizedCrop(32), Blur(), T.ToTensor()])
train_set = datasets.ImageFolder(train_set.root, steps)
train(DataLoader(train_set, 8, shuffle=True), make_optimizer())
"""


@pytest.fixture(scope="module")
def server():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, migrated_programs.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    yield process
    process.stdin.close()
    process.wait(20)
    process.stdout.close()


@pytest.fixture
def serve(server, tmp_path):
    def ask(**job):
        job = {"folder_of_program": str(tmp_path), "dump": str(tmp_path / "dump"), **job}
        print(json.dumps(job), file=server.stdin, flush=True)
        answer = json.loads(server.stdout.readline())
        return answer["answers"], answer["status"], (tmp_path / "output").read_text()

    return ask


@pytest.fixture
def watch(serve, tmp_path, image_folder):
    def run(text, **options):
        head = HEAD.format(images=str(image_folder))
        (tmp_path / "train.py").write_text(head + text)
        (tmp_path / "work").mkdir(exist_ok=True)
        job = {
            "words": ["train.py"],
            "is_module": False,
            "number": None,
            "loader": {"kind": "TorchConfig", "num_workers": 0},
            "cache_dir": None,
            "folder": str(tmp_path / "work"),
        }
        return serve(**job | options)

    return run


def loaders_of(answers):
    return [ProgramLoader.from_dict(each["loader"]) for each in answers if "loader" in each]


def proposal_of(loaders, folder):
    wishes = [
        Wish(loader.origin, loader.converts, not loader.before_training) for loader in loaders
    ]
    return propose(wishes, folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", PROGRAMS)
def test_the_program_is_fed_by_ours_after_the_change(watch, serve, tmp_path, kind):
    text, fed, training = PROGRAMS[kind]
    answers, status, output = watch(text)
    assert status == 0, (answers[-1], output)
    loaders = loaders_of(answers)
    assert [each.number for each in loaders if each.trains] == [training]
    # the work of that one is all that is saved
    assert [each.number for each in loaders if each.work] == [training]

    proposal = proposal_of(loaders, tmp_path)
    assert proposal.diff and list(proposal.texts) == [tmp_path / "train.py"], proposal.notes
    (tmp_path / "changed.py").write_text(proposal.texts[tmp_path / "train.py"])
    answers, status, output = serve(patched="changed.py")
    assert (status, answers) == (0, [{"fed": fed}]), (output, proposal.diff)


@pytest.mark.slow
def test_a_program_with_a_step_of_its_own_is_changed_and_not_measured(watch, tmp_path):
    """The step runs as it is; the processes of an A/B could not import it."""
    answers, status, output = watch(OWN_STEP)
    assert status == 0, (answers[-1], output)
    (loader,) = loaders_of(answers)
    assert loader.converts and loader.work is None
    assert loader.unmeasurable.startswith("Blur (train.py:35) is a step of your own")
    assert proposal_of([loader], tmp_path).diff


@pytest.mark.slow
def test_a_loader_of_another_module_is_changed_there(watch, tmp_path):
    module = (
        "from torch.utils.data import DataLoader\ndef make(data):\n    return DataLoader(data, 8)\n"
    )
    (tmp_path / "data_of_mine.py").write_text(module)
    answers, _, _ = watch(
        "from data_of_mine import make\ntrain(make(train_set), make_optimizer())\n"
    )
    (loader,) = loaders_of(answers)
    proposal = proposal_of([loader], tmp_path)
    assert loader.origin.place(tmp_path) == "data_of_mine.py:3"
    changed = module.replace("DataLoader(data, 8)", "dp.from_torch(DataLoader(data, 8))")
    changed = changed.replace("def make", "import dali_pipes as dp\ndef make")
    assert proposal.texts == {tmp_path / "data_of_mine.py": changed}


@pytest.mark.slow
def test_nothing_of_the_training_runs_and_nothing_is_written(watch, tmp_path):
    text = PROGRAMS["two loaders"][0] + "print('uploaded')\n"
    (tmp_path / "helper_of_mine.py").write_text("x = 1\n")
    answers, status, output = watch(
        f"import helper_of_mine, atexit\natexit.register(print, 1){text}"
    )
    assert status == 0 and not output.strip(), (answers, output)
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"train.py", "helper_of_mine.py", "output", "dump", "work"}


REFUSED = {
    "no DataLoader": ("x = 1\n", "it ended and has made no DataLoader", 1),
    "an error": ("raise ValueError('mine')\n", "ValueError: mine", 1),
    "sys.exit": ("raise SystemExit(3)\n", "ended by itself with 3, before its training", 3),
    "spawn": (
        "import torch.multiprocessing as mp\nmp.spawn(train, nprocs=2)\n",
        "give migrate a program that trains in its main process",
        1,
    ),
    "ranks": (
        "import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=2)\n",
        "migrate runs one: give it one device",
        1,
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_program_that_does_not_come_to_its_training(watch, kind):
    text, message, expected = REFUSED[kind]
    answers, status, _ = watch(text)
    assert message in answers[-1]["failed"] + answers[-1]["trace"] and status == expected
    assert not loaders_of(answers)


def test_an_iterable_dataset_is_refused_by_name(watch, tmp_path):
    answers, status, _ = watch("train(DataLoader(stream, 8), make_optimizer())\n")
    (loader,) = loaders_of(answers)
    assert status == 0 and "an IterableDataset" in loader.report.refusal
    assert loader.report.text == "a DataLoader of samples of Stream, batches of 8"
    assert not proposal_of([loader], tmp_path).diff


@pytest.mark.slow
def test_another_loader_can_be_measured(watch, tmp_path):
    answers, _, _ = watch(PROGRAMS["two loaders"][0], number=2)
    loaders = loaders_of(answers)
    assert [bool(each.work) for each in loaders] == [False, True]
    assert loaders[0].trains and loaders[1].report.compared
    assert Path(loaders[1].work["manifest"]).exists()


@pytest.mark.slow
def test_a_loader_of_a_library_is_named_with_what_helps(watch, tmp_path):
    """Lightning makes a DataLoader anew: the copy counts as the one that the program has made."""
    package = tmp_path / "site-packages/lightning"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "from torch.utils.data import DataLoader\n"
        "def fit(loader, step):\n"
        "    for batch in DataLoader(loader.dataset, 8, shuffle=True): step(batch)\n"
        "def fit_made(dataset):\n    fit(DataLoader(dataset, 8), print)\n"
    )
    start = "import sys; sys.path.insert(0, 'site-packages'); import lightning\n"
    start += "optimizer = make_optimizer()\n"
    answers, _, output = watch(start + "lightning.fit(DataLoader(train_set, 8), print)\n")
    (loader,) = loaders_of(answers)
    assert loader.iterated_by == "lightning" and loader.trains, output
    assert "dp.from_torch(DataLoader(train_set, 8))" in proposal_of([loader], tmp_path).diff

    answers, _, _ = watch(start + "lightning.fit_made(train_set)\n")
    (loader,) = loaders_of(answers)
    proposal = proposal_of([loader], tmp_path)
    assert loader.origin.library == "lightning" and not proposal.diff
    assert "lightning makes this DataLoader" in proposal.notes[0]
