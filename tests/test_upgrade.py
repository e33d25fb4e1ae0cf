"""docs/upgrade.md and docs/faq.md say what the package says."""

import ast
import re
from pathlib import Path

import pytest
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder

import dali_pipes as dp

REPO = Path(__file__).parents[1]
WORKS, REFUSED = "works with a warning", "is refused, and the error names the new one"
ROWS = re.findall(
    r"^\| `(.*?)` \| `(.*?)` \| (.*?) \|$", (REPO / "docs/upgrade.md").read_text(), re.MULTILINE
)
TRANSFORM = dp.TrainTransform(size=32)
OPTIONS = {"transform": TRANSFORM, "batch_size": 4}


class Program:
    """A program of an earlier version.

    Attributes:
        calls: what it writes, by the name in docs/upgrade.md.
    """

    def __init__(self, folder, command):
        self.manifest = dp.Manifest.scan(folder, progress=False)
        self.folder, self.command, self.rank = folder, command, dp.Rank(0, 1)
        self.config = dp.TorchConfig(num_workers=0)
        self.plan = dp.Plan(self.manifest, TRANSFORM, 4)
        self.calls = {
            "build_loader(shard=…)": lambda: self.load(shard=self.rank).close(),
            "from_torch(shard=…)": self.convert,
            "Plan(shard=…)": lambda: dp.Plan(self.manifest, TRANSFORM, 4, shard=self.rank),
            "plan.shard": lambda: self.plan.shard,
            "plan.shard_samples": lambda: self.plan.shard_samples,
            "plan.rows(epoch, step)": lambda: self.plan.rows(0, 0),
            "planned.geometry.window": lambda: self.plan.batch(0, 0).geometry.window,
            "Plan(shuffle=…)": lambda: dp.Plan(self.manifest, TRANSFORM, 4, shuffle=True),
            "batch.columns": lambda: self.batch().columns,
            "manifest.upright_sizes": lambda: self.manifest.upright_sizes,
            "loader=synthetic": self.train,
        }

    def load(self, **options):
        return dp.build_loader(self.manifest, self.config, **OPTIONS, **options)

    def batch(self):
        with self.load() as loader:
            return next(iter(loader))

    def convert(self):
        transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
        images = ImageFolder(self.folder, transform)
        dp.from_torch(DataLoader(images, batch_size=4), self.config, shard=self.rank)

    def train(self):
        text = self.command("train", "loader=synthetic", f"data.train={self.folder}").stderr
        raise dp.ConfigError(text)

    def run(self, old):
        return self.calls[old]() if old in self.calls else getattr(dp, old.removeprefix("dp."))


@pytest.fixture
def program(image_folder, command):
    return Program(image_folder, command)


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, new, how in ROWS if how == WORKS])
def test_an_old_spelling_works_with_a_warning_that_says_the_new_one(program, old, new):
    short = re.sub(r"^(plan|planned|batch|manifest)\.", "", new).partition("(epoch")[0]
    said = re.search(r"\((\w+=)…", short)
    short = said[1] if said else short.replace("dp.", "dali_pipes.")
    with pytest.warns(FutureWarning, match=re.escape(short)):
        program.run(old)


@pytest.mark.parametrize(("old", "new"), [(old, new) for old, new, how in ROWS if how == REFUSED])
def test_an_old_spelling_is_refused_with_the_new_one(program, old, new):
    with pytest.raises((AttributeError, TypeError, dp.ConfigError), match=re.escape(new)):
        program.run(old)


def test_the_table_says_of_every_old_spelling_what_becomes_of_it():
    assert len(ROWS) == 18 and {how for _, _, how in ROWS} == {WORKS, REFUSED}


def texts_of_the_package():
    """The texts of the source, with … for what is filled in."""
    for file in (REPO / "dali_pipes").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = (
                    part.value if isinstance(part, ast.Constant) else "…" for part in node.values
                )
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.slow
def test_the_errors_of_the_faq_are_those_of_the_package():
    quoted = re.findall(r"^### `(.*)`$", (REPO / "docs/faq.md").read_text(), re.MULTILINE)
    texts = list(texts_of_the_package())
    missing = [text for text in quoted if not any(text in each for each in texts)]
    assert quoted and not missing
