from data.conftest import image_folder, manifest  # noqa: F401  thumbnails here too
