"""Layers of a result's page: its sources in their colours, what has changed, and pictures that were located."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stream_recon.app.core.types import Frame
    from stream_recon.app.localization.localize import Localization
    from stream_recon.app.result.cameras import FrameCamera
    from stream_recon.app.result.folder import ResultFolder
    from stream_recon.app.viewer.place_layers import PlaceLayers, SourceLayer
    from stream_recon.app.viewer.viewer import Viewer

SOURCE_FRAMES, FRAME_POINTS = 40, 1500
"""Frames of a source whose points are shown, and points of each."""
THUMBNAIL_SIDE = 256
"""Longer side of a located picture on the page."""


def show_layers(viewer: "Viewer", result: "ResultFolder") -> None:
    """Show a merged result's sources, and the changes since the result that this one was put onto."""
    from stream_recon.app.core.ply import colours, positions
    from stream_recon.app.localization.changes import ADDED_RGB, GONE_RGB
    from stream_recon.app.result.files import stored_points
    from stream_recon.app.result.run_record import CHANGES_NAME, ONTO
    from stream_recon.configs.errors import OutputError

    sources = list(_sources(result))
    if sources:
        viewer.show_place(lambda layers, depth: layers.show_sources(sources, depth))
    if not (ONTO in result.run and (result.folder / CHANGES_NAME).exists()):
        return
    try:
        points = stored_points(result.folder / CHANGES_NAME)
    except OutputError:
        return
    xyz, rgb = positions(points), colours(points)
    for kind, colour in (("added", ADDED_RGB), ("gone", GONE_RGB)):
        chosen = xyz[(rgb == colour).all(axis=1)]
        viewer.show_place(partial(_show_change, kind, chosen, colour))


def _show_change(
    kind: str, points: "NDArray[np.float32]", colour: tuple[int, int, int], layers: "PlaceLayers", depth: float
) -> None:
    layers.show_change(kind, points, colour, depth)


def show_located(viewer: "Viewer", frame: "Frame", localization: "Localization") -> None:
    """Show a picture where it was taken."""
    from stream_recon.app.sources.preprocess import reduced_image

    small = reduced_image(frame.rgb, THUMBNAIL_SIDE)
    viewer.show_place(
        lambda layers, depth: layers.add_query(small, localization.intrinsics, localization.T_world_camera, depth)
    )


def _sources(result: "ResultFolder") -> Iterator["SourceLayer"]:
    """The sources of a merged result; none of another one."""
    import numpy as np

    from stream_recon.app.result.run_record import PARTS
    from stream_recon.app.viewer.place_layers import SourceLayer

    options = result.run.get("options")
    parts: Any = options.get(PARTS) if isinstance(options, dict) else None
    if not isinstance(parts, list) or result.rig is not None:  # views of all sources follow one another
        return
    firsts = [int(part["first"]) for part in parts]
    index = np.array([camera.index for camera in result.cameras])
    edges = [*np.searchsorted(index, firsts).tolist(), len(index)]
    for part, begin, end in zip(parts, edges, edges[1:], strict=False):
        cameras = result.cameras[begin:end]
        path = np.array([camera.T_world_camera[:3, 3] for camera in cameras], np.float32).reshape(-1, 3)
        points, rgb = _points(result, cameras)
        yield SourceLayer(str(part["name"]), range(begin, end), path, points, rgb)


def _points(
    result: "ResultFolder", cameras: Sequence["FrameCamera"]
) -> "tuple[NDArray[np.float32], NDArray[np.uint8]]":
    """Points [N, 3] of some frames, and their colours."""
    import numpy as np

    from stream_recon.app.core.depth_points import frame_points
    from stream_recon.app.core.transforms import transform_points
    from stream_recon.configs.errors import OutputError

    xyz, rgb = [np.zeros((0, 3), np.float32)], [np.zeros((0, 3), np.uint8)]
    kept = result.with_depth(cameras)
    for camera in kept[:: max(len(kept) // SOURCE_FRAMES, 1)]:
        try:
            frame = result.surface_of(camera)
        except OutputError:
            continue
        points = frame_points(frame, result.points)
        step = max(len(points.xyz) // FRAME_POINTS, 1)
        xyz.append(transform_points(frame.T_world_camera, points.xyz[::step]))
        rgb.append(points.rgb[::step])
    return np.concatenate(xyz), np.concatenate(rgb)
