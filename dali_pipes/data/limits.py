"""How many pixels an image may have."""

from dali_pipes.errors import ConfigError

MAX_PIXELS = 89_478_485  # by default; Pillow's limit against decompression bombs, which is not asked
MOST_PIXELS = 2**31 - 1


def check_max_pixels(option: str, value: int | None) -> None:
    if value is not None and not 1 <= value <= MOST_PIXELS:
        raise ConfigError(f"{option} is {value}; it must lie between 1 and {MOST_PIXELS}")
