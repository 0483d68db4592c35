"""Perspective views of frames of 360 degrees: a rig that looks to all sides."""

from collections.abc import Callable, Iterable
from functools import cache
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.rig import Rig
from stream_recon.app.core.so3 import exp
from stream_recon.app.sources.calibration import Calibration
from stream_recon.app.sources.cube_maps import EQUIRECTANGULAR, SphereLayout
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
def _view_map(layout: SphereLayout, size: tuple[int, int], view: int) -> tuple[NDArray[np.int16], NDArray[np.uint16]]:
    """Where each pixel of a view lies in a picture of ``size``, for `cv2.remap`."""
    camera = view_camera(layout.width_around(*size))
    assert camera.size is not None
    x, y = np.meshgrid(*((np.arange(n) + 0.5 - n / 2) / camera.fx for n in camera.size))
    rays = np.stack([x, y, np.ones_like(x)], axis=-1) @ panorama_rig().T_body_view[view, :3, :3].T
    column, row = layout.places(rays, *size)
    maps: tuple[NDArray[np.int16], NDArray[np.uint16]] = cv2.convertMaps(
        column.astype(np.float32), row.astype(np.float32), cv2.CV_16SC2
    )
    return maps


def cut_view(rgb: NDArray[np.uint8], view: int, layout: SphereLayout = EQUIRECTANGULAR) -> NDArray[np.uint8]:
    """One of the views of an image [H, W, 3], of which an equirectangular one has its middle in front."""
    maps = _view_map(layout, (rgb.shape[1], rgb.shape[0]), view)
    return np.asarray(cv2.remap(rgb, *maps, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP), np.uint8)


SAMPLES, MAX_STEP, ROWS = 24, 10, 128
"""Frames of a film by which its carrier is found, at most how far apart, and the height to which they are reduced."""
MOVING, STILL, OUTLINE = 6.0, 0.15, 0.25
"""Median change of all pixels in grey levels from which the camera moves, share of it up to which a pixel stays the
same, and share of it that the lasting gradient of a carrier has: a floor without texture has none."""
BAND, MAX_WIDTH, MAIN = (0.55, 0.73), 0.3, 0.7
"""Rows that the views show below the horizon, largest share of the horizon behind a carrier, and its least share of all
that stays the same: a road or corridor does so ahead and behind."""


def find_carrier(
    frames: Iterable[NDArray[np.uint8]], layout: SphereLayout = EQUIRECTANGULAR
) -> NDArray[np.uint8] | None:
    """Equirectangular mask [ROWS, 2 ROWS] of who carries the camera in panoramas: to one side below the horizon, what
    stays the same while all else changes is 1. None: there is nothing, or the camera stands."""
    small = [_reduced(rgb, layout) for rgb in frames]
    if len(small) < SAMPLES // 2:
        return None
    typical = np.median(small, axis=0)
    change = np.median(np.abs(small - typical), axis=0)
    if np.median(change) < MOVING:
        return None
    rows = slice(*(round(share * ROWS) for share in BAND))
    still = np.zeros(change.shape, np.uint8)
    still[rows] = cv2.erode(np.asarray(change[rows] < STILL * np.median(change), np.uint8), np.ones((3, 3), np.uint8))
    # The picture is cut where least stays the same: its left and right borders meet.
    seam = -int(np.argmin(still.sum(axis=0)))
    still = cv2.dilate(np.roll(still, seam, axis=1), np.ones((7, 7), np.uint8))
    gradient = np.roll(np.hypot(*np.gradient(typical)), seam, axis=1)
    _, labels, found, _ = cv2.connectedComponentsWithStats(still)
    main = 1 + int(np.argmax(found[1:, cv2.CC_STAT_AREA])) if len(found) > 1 else 0
    carrier = labels == main
    if (
        not main
        or found[main, cv2.CC_STAT_WIDTH] > MAX_WIDTH * 2 * ROWS
        or found[main, cv2.CC_STAT_AREA] < MAIN * still.sum()
        or np.quantile(gradient[carrier], 0.9) < OUTLINE * np.median(change)
    ):
        return None
    return np.asarray(np.roll(carrier, -seam, axis=1), np.uint8)


def _reduced(rgb: NDArray[np.uint8], layout: SphereLayout) -> NDArray[np.float64]:
    """Mean levels [ROWS, 2 ROWS] of a panorama, equirectangular."""
    if layout.faces:
        factor = min(1.0, 2 * ROWS / layout.width_around(rgb.shape[1], rgb.shape[0]))
        rgb = np.asarray(cv2.resize(rgb, None, None, factor, factor, cv2.INTER_AREA), np.uint8)
        rgb = np.asarray(cv2.remap(rgb, *_round_map(layout, (rgb.shape[1], rgb.shape[0])), cv2.INTER_LINEAR), np.uint8)
    return np.asarray(cv2.resize(rgb, (2 * ROWS, ROWS), interpolation=cv2.INTER_AREA).mean(axis=2), np.float64)


@cache
def _round_map(layout: SphereLayout, size: tuple[int, int]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Where the pixels of an equirectangular picture [ROWS, 2 ROWS] lie in one of ``size``."""
    x, y = np.meshgrid((np.arange(2 * ROWS) + 0.5) / ROWS - 1, (np.arange(ROWS) + 0.5) / ROWS - 0.5)
    longitude, latitude = np.pi * x, np.pi * y
    level = np.cos(latitude)
    rays = np.stack([np.sin(longitude) * level, np.sin(latitude), np.cos(longitude) * level], axis=-1)
    column, row = layout.places(rays, *size)
    return column.astype(np.float32), row.astype(np.float32)


class PanoramaReader(RigReader):
    """Views of one panorama, which is read once for each."""

    def __init__(self, name: str, open_again: Callable[[], Source], layout: SphereLayout) -> None:
        """``open_again``: opens the panorama with the choice of frames. Raises InputError."""
        self._layout = layout
        self.carrier: NDArray[np.uint8] | None = None
        """See `find_carrier`; these pixels are masked. None: there is nothing."""
        super().__init__(panorama_rig(), name, [open_again] * len(NAMES))
        if layout.faces:
            kind = f"{'equi-angular ' * layout.equal_angles}cube map of the faces {layout.faces.upper()}"
            self.warnings.append(f"{name} is read as {kind} in rows of {layout.columns}")

    def view_camera(self, rgb: NDArray[np.uint8]) -> Calibration:
        height, width = rgb.shape[:2]
        if not self._layout.faces and abs(width - 2 * height) > 2:
            raise InputError(f"{self.name} is no complete panorama: {width}x{height} is not 2:1")
        return view_camera(self._layout.width_around(width, height))

    def cut(self, rgb: NDArray[np.uint8], view: int) -> NDArray[np.uint8]:
        if self.carrier is not None:
            width = self._layout.width_around(rgb.shape[1], rgb.shape[0])
            mask = cut_view(cv2.resize(self.carrier, (width, width // 2)), view) > 0
            self.transparent = mask if mask.any() else None
        return cut_view(rgb, view, self._layout)


def open_views(spec: str, choice: FrameChoice, layout: SphereLayout) -> Source:
    """The views of a panorama. Raises InputError, ConfigError as `open_source`."""
    if choice.masks is not None:
        raise ConfigError("--masks is not for panoramas of 360 degrees, which are cut into views")

    def open_again() -> Source:
        reader = open_reader(spec, choice.fps, 0.0, choice.topic, is_panorama=True)
        return source_of(reader, choice, is_panorama=True)

    reader = PanoramaReader(Path(spec).expanduser().resolve().name, open_again, layout)
    with open_again() as source:
        step = min(max(1, (source.frame_hint or 1) // SAMPLES), MAX_STEP)
        frames = (frame.rgb for frame in islice(source, 0, SAMPLES * step, step))
        reader.carrier = find_carrier(frames, layout)
    if reader.carrier is not None:
        reader.warnings.append(f"{reader.name}: what moves along with the camera is masked")
    return Source(reader)
