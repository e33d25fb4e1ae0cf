"""The page of a run says what its files say, and needs nothing else."""

import csv
import json
import re
import shutil
from html.parser import HTMLParser

import pytest
import torch
from later import later

import dali_pipes as dp
from dali_pipes.data.config import DataConfig
from dali_pipes.tools.training_page.page import write_page
from dali_pipes.training.config import ModelConfig, OptimizerConfig, TrainConfig

training = later("dali_pipes.training.run")


@pytest.fixture(scope="module")
def folders(image_folder, tmp_path_factory):
    """Runs of classes, of numbers, and without evaluation, each with its page."""
    threads, root = torch.get_num_threads(), tmp_path_factory.mktemp("runs")
    files = sorted(file for file in image_folder.rglob("*.*") if file.is_file())
    lines = [f"{file},{place / 10 + 0.05}" for place, file in enumerate(files)]
    (root / "t.csv").write_text("\n".join(["path,label", *lines]))
    classes = DataConfig(train=str(image_folder), val=str(image_folder))
    numbers = DataConfig(train=str(root / "t.csv"), val=str(root / "t.csv"))
    kinds = {
        "classes": {"data": classes},
        "numbers": {"data": numbers},
        "none": {"data": classes, "validation": "none"},
    }
    for name, options in kinds.items():
        folder = training.train(
            TrainConfig(
                transform=dp.TrainTransform(size=32),
                eval_transform=dp.EvalTransform(size=32, resize=36),
                loader=dp.DaliConfig(device="cpu", num_threads=1),
                model=ModelConfig(name="shufflenet_v2_x0_5"),
                optimizer=OptimizerConfig(lr=0.02, lr_batch_size=None),
                epochs=2,
                batch_size=8,
                out=str(root / name),
                **options,
            )
        )
        assert folder == root / name
        write_page(folder)
    yield {name: root / name for name in kinds}
    torch.set_num_threads(threads)


def read(folder):
    page = (folder / "report.html").read_text()
    assert not re.search(r"(?:src|href)=[\"']?(?!data:|#)[^\s\"'>]", page), "it opens offline"
    return page


class Open(HTMLParser):
    """The elements that are open at the end."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag in ("figure", "svg", "table", "div", "ul", "pre", "details", "h1", "h2", "span"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["classes", "numbers", "none"])
def test_a_page_is_complete(folders, kind):
    parser, page = Open(), read(folders[kind])
    parser.feed(page)
    assert parser.open == []
    summary = json.loads((folders[kind] / "summary.json").read_text())
    assert summary["conclusion"] in page and "data: " not in summary["conclusion"]
    # what is a share (0 to 1) has a chart apart; so has all of it, if the errors are that small
    charts = {"classes": (4,), "numbers": (4, 5), "none": (3,)}[kind]
    assert page.count("<figure><svg") in charts
    assert page.count('src="data:image/webp') == {"classes": 37, "numbers": 37, "none": 0}[kind]


@pytest.mark.parametrize("left", [4, 0])
def test_a_run_of_another_folder_that_went_on_here_has_a_page(folders, tmp_path, left):
    """The steps before its checkpoint are not in this folder, and no config.yaml."""
    shutil.copytree(folders["classes"], tmp_path / "on")
    (tmp_path / "on/config.yaml").rename(tmp_path / "on/config_from_step_4.yaml")
    head, *steps = (tmp_path / "on/steps.csv").read_text().splitlines()
    (tmp_path / "on/steps.csv").write_text("\n".join([head, *steps[len(steps) - left :], ""]))
    write_page(tmp_path / "on")
    assert read(tmp_path / "on").count("<figure><svg") == (4 if left else 2)


def test_the_headline_is_the_last_evaluation(folders):
    summary = json.loads((folders["classes"] / "summary.json").read_text())
    assert f"<h1>top-1 {summary['top1']:.1%} after 2 epochs" in read(folders["classes"])
    summary = json.loads((folders["numbers"] / "summary.json").read_text())
    assert f"<h1>mae {summary['mae']:.4g} after 2 epochs" in read(folders["numbers"])
    assert "<h1>Training loss" in read(folders["none"])


def test_a_run_of_one_epoch_is_not_the_best_of_several(folders, tmp_path):
    """Its axes have whole numbers, though there is only one epoch to draw."""
    shutil.copytree(folders["classes"], tmp_path / "one")
    head, first, _ = (tmp_path / "one/epochs.csv").read_text().splitlines()
    (tmp_path / "one/epochs.csv").write_text(f"{head}\n{first}\n")
    summary = json.loads((tmp_path / "one/summary.json").read_text())
    (tmp_path / "one/summary.json").write_text(
        json.dumps(summary | {"epochs": 1, "best_epoch": 0, "top1": 0.25})
    )
    write_page(tmp_path / "one")
    page = read(tmp_path / "one")
    assert re.search("<h1>top-1 [0-9.]+% after 1 epoch</h1>", page)
    ticks = re.findall(r'id="xtick_\d+">.*?<text[^>]*>([^<]*)</text>', page, re.DOTALL)
    assert "1" in ticks and all(tick.isdigit() for tick in ticks)


def test_the_matrix_counts_every_image(folders, image_folder):
    with (folders["classes"] / "confusion.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    names = [row.pop("class") for row in rows]
    images = [(image_folder / name).rglob("*.*") for name in names]
    counts = [sum(file.is_file() for file in of_class) for of_class in images]
    assert [sum(map(int, row.values())) for row in rows] == counts and sum(counts) == 37
    right = sum(int(row[name]) for name, row in zip(names, rows, strict=True))
    summary = json.loads((folders["classes"] / "summary.json").read_text())
    assert right == round(37 * summary["top1"])


def test_a_class_without_a_measurement_is_the_last_one(folders, tmp_path):
    shutil.copytree(folders["classes"], tmp_path / "on")
    (tmp_path / "on/classes.csv").write_text("class,ap\na,nan\nb,0.5\nc,nan\nd,0.25\n")
    write_page(tmp_path / "on")
    rows = re.findall(r"<tr><td>([abcd])<td>([^<]+?)\s*(?=<tr>|</table>)", read(tmp_path / "on"))
    assert rows == [("d", "0.250"), ("b", "0.500"), ("a", "–"), ("c", "–")]


def test_pictures_are_what_the_network_saw(folders):
    rows = json.loads((folders["classes"] / "examples.json").read_text())
    summary = json.loads((folders["classes"] / "summary.json").read_text())
    assert sum(row["right"] for row in rows) == round(37 * summary["top1"])
    assert all(row["truth"] in row["name"] for row in rows)
    page = read(folders["classes"])
    shown = [page.index(f'alt="{row["name"]}"') for row in rows]
    wrong = [at for at, row in zip(shown, rows, strict=True) if not row["right"]]
    assert max(wrong) < min(set(shown) - set(wrong))
