"""Checks that keypoints survive a flip: the left ones must then be called right ones."""

import logging

from dali_pipes.data.manifest import Manifest
from dali_pipes.errors import ConfigError
from dali_pipes.plan.transforms import Transform, views_of

log = logging.getLogger(__name__)

_SHOWN = 5  # names


def check_flips(manifest: Manifest, transform: Transform) -> None:
    """Warns if a transform flips images but their keypoints do not change places.

    Raises:
        ConfigError: by their names they should change places.
    """
    view, keypoints = views_of(transform)[0], manifest.keypoints
    flips = getattr(view, "flip", 0) or getattr(view, "vertical_flip", 0)
    if not flips or keypoints is None or manifest.names_flip_pairs:
        return

    names = keypoints.unpaired_names or keypoints.names
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    advice = "name the pairs with flip_pairs ([]: there are none), or set the transform's flip to 0"
    # names such as "left_eye" prove that a flip is wrong; other names only suggest it
    if keypoints.unpaired_names and not keypoints.has_pairs:
        raise ConfigError(
            f"{manifest.root}: the transform flips images, and of the keypoints {shown} "
            "none becomes another one, so left ones "
            f"would be trained as right ones; {advice}"
        )
    if keypoints.unpaired_names or not keypoints.has_pairs:
        log.warning(
            "%s: the transform flips images, and the keypoints %s keep their names; %s",
            manifest.root,
            shown,
            advice,
        )
