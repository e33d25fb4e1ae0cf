"""What a measurement is made of: its images, and the network of workload=train."""

from dali_pipes.data.images import open_images, sample_images
from dali_pipes.data.manifest import Manifest
from dali_pipes.measure.config import MeasureConfig
from dali_pipes.training.network.build import (
    check_channels,
    check_model,
    default_model,
    refuse_training_options,
)


def open_measured_images(config: MeasureConfig) -> Manifest:
    """Opens the training images and returns at most `config.images` of them.

    Raises:
        ConfigError, ManifestError: no images are given, or none are there; or there is no such
            model.
    """
    check_trained_model(config)  # refuses an unknown model before the images are read
    return sample_images(open_images(config.data, "train"), config.images, config.seed)


def check_trained_model(config: MeasureConfig) -> str | None:
    """The name of the network of workload=train; None for another workload.

    Raises:
        ConfigError: there is no such model, or none for images of so many channels.
    """
    refuse_training_options(config.model)
    name = check_model(config.model.name or default_model())
    if config.workload != "train":
        return None
    check_channels(name, getattr(config.transform, "channels", 3))
    return name
