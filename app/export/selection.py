"""Which frames of a result an export is made of."""

from collections.abc import Sequence

from stream_recon.app.output.cameras import Camera
from stream_recon.configs.errors import ConfigError, InputError


def select(cameras: Sequence[Camera], frames: str) -> list[Camera]:
    """The frames that ``frames`` names: ``keyframes``, ``all``, or a number N for every N-th.

    Raises:
        ConfigError: it is none of these.
        InputError: there are no frames yet.
    """
    if frames == "keyframes":
        # The first frame is one, but a run that was cut off early may have told of no other.
        chosen = [camera for camera in cameras if camera.is_keyframe] or list(cameras)
    elif frames == "all":
        chosen = list(cameras)
    elif frames.isascii() and frames.isdecimal() and int(frames) > 0:
        chosen = list(cameras[:: int(frames)])
    else:
        raise ConfigError(f"--frames {frames}: use keyframes, all, or a number N for every N-th frame")
    if not chosen:
        raise InputError("the result has no frames yet: there is nothing to export")
    return chosen
