"""Tests here load thumbnails: what they are about is not in the pixels."""

import pytest


@pytest.fixture(scope="session")
def manifest(thumbnails):
    return thumbnails


@pytest.fixture(scope="session")
def image_folder(thumbnails):
    return thumbnails.root
