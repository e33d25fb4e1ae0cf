import pytest

import dali_pipes as dp
from dali_pipes.data import images
from dali_pipes.data.config import DataConfig


@pytest.fixture
def made(monkeypatch, image_folder):
    """The folders in which a demo set was made; here it is a link to the test's own images."""
    folders = []

    def make(root):
        folders.append(root)
        for split in ("train", "val"):
            (image_folder.parent / f"{image_folder.name}_demo").mkdir(exist_ok=True)
            link = image_folder.parent / f"{image_folder.name}_demo" / split
            if not link.exists():
                link.symlink_to(image_folder)

    monkeypatch.setattr(images, "make_demo_set", make)
    return folders


def test_the_demo_set_is_made_where_it_is_asked_for(made, image_folder):
    root = str(image_folder.parent / f"{image_folder.name}_demo")
    assert len(images.open_images(DataConfig(root=root, demo=True), "val")) == 37
    assert made == [root]


def test_images_of_ones_own_are_left_alone(made, image_folder):
    mixed = DataConfig(root="/no/such", train=str(image_folder), demo=True)
    assert len(images.open_images(mixed, "train")) == 37 and made == []
    with pytest.raises(dp.ManifestError, match="no such folder"):
        images.open_images(DataConfig(root="/no/such"), "train")
