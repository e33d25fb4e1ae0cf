"""How many pixels an image may have."""

from dali_pipes.checks import check_int

# the default: Pillow's own limit against decompression bombs, whatever Pillow is set to
MAX_PIXELS = 89_478_485
PIXEL_LIMIT = 2**31 - 1


def check_max_pixels(option: str, value: int | None) -> None:
    if value is not None:
        check_int(option, value, 1, PIXEL_LIMIT)
