"""Perspective views of equirectangular frames: a rig that looks to all sides."""

from functools import cache
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.rig import Rig
from stream_recon.app.core.so3 import exp
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.opening import open_reader
from stream_recon.app.sources.rig_views import RigReader
from stream_recon.app.sources.source import Source, source_of
from stream_recon.configs.errors import ConfigError, InputError

NAMES = ("front", "right", "back", "left")
FOV = np.radians(100.0), np.radians(80.0)
"""Horizontal and vertical field of view: neighbours overlap by ten degrees, and neither sky nor the person who carries
the camera fill the views."""


def panorama_rig() -> Rig:
    """The views, turned about the vertical axis of the camera."""
    turns = np.zeros((len(NAMES), 3))
    turns[:, 1] = 2 * np.pi * np.arange(len(NAMES)) / len(NAMES)
    return Rig.of_turns(NAMES, exp(turns))


@cache
def view_camera(width: int) -> Calibration:
    """Camera of the views of a panorama of ``width``, with its resolution at the middle."""
    focal = width / (2 * np.pi)
    w, h = (2 * round(focal * float(np.tan(fov / 2))) for fov in FOV)
    return Calibration(focal, focal, w / 2, h / 2, size=(w, h))


@cache
def _view_map(width: int, height: int, view: int) -> tuple[NDArray[np.int16], NDArray[np.uint16]]:
    """Where each pixel of a view lies in a panorama, for `cv2.remap`."""
    camera = view_camera(width)
    assert camera.size is not None
    x, y = np.meshgrid(*((np.arange(n) + 0.5 - n / 2) / camera.fx for n in camera.size))
    rays = np.stack([x, y, np.ones_like(x)], axis=-1) @ panorama_rig().T_body_view[view, :3, :3].T
    longitude = np.arctan2(rays[..., 0], rays[..., 2])
    latitude = np.arctan2(rays[..., 1], np.hypot(rays[..., 0], rays[..., 2]))
    column = (longitude / (2 * np.pi) + 0.5) * width - 0.5
    row = (latitude / np.pi + 0.5) * height - 0.5
    maps: tuple[NDArray[np.int16], NDArray[np.uint16]] = cv2.convertMaps(
        column.astype(np.float32), row.astype(np.float32), cv2.CV_16SC2
    )
    return maps


def cut_view(rgb: NDArray[np.uint8], view: int) -> NDArray[np.uint8]:
    """One of the views of an equirectangular image [H, 2H, 3], whose middle is in front."""
    maps = _view_map(rgb.shape[1], rgb.shape[0], view)
    return np.asarray(cv2.remap(rgb, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP), np.uint8)


class PanoramaReader(RigReader):
    """Views of one panorama, which is read once for each."""

    def view_camera(self, rgb: NDArray[np.uint8]) -> Calibration:
        height, width = rgb.shape[:2]
        if abs(width - 2 * height) > 2:
            raise InputError(f"{self.name} is no complete panorama: {width}x{height} is not 2:1")
        return view_camera(width)

    def cut(self, rgb: NDArray[np.uint8], view: int) -> NDArray[np.uint8]:
        return cut_view(rgb, view)


def open_views(spec: str, choice: FrameChoice) -> Source:
    """The views of a panorama. Raises InputError, ConfigError as `open_source`."""
    if choice.masks is not None:
        raise ConfigError("--masks is not for panoramas of 360 degrees, which are cut into views")

    def open_again() -> Source:
        reader = open_reader(spec, choice.fps, 0.0, choice.topic, is_panorama=True)
        return source_of(reader, choice, is_panorama=True)

    rig = panorama_rig()
    return Source(PanoramaReader(rig, Path(spec).expanduser().resolve().name, [open_again] * len(rig)))
