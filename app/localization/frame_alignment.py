"""How a run's world lies in the world of a known result, from frames of the run that are recognized in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stream_recon.app.core.transforms import Similarity, align
from stream_recon.app.core.types import FrameResult
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION, RunAlignmentConfig
from stream_recon.app.localization.localize import LocalizationMap, LocatedImage
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import DepthReader, Scale


@dataclass(frozen=True)
class RecognizedFrame:
    """A frame of the run that shows the known place."""

    index: int
    T_known_camera: FloatArray  # [4, 4]
    known_distance: float
    """Median depth of its matched points, in the known result's unit."""
    distance: float
    """The same by the frame's depth as it was first returned, in the run's unit."""

    def known_points(self) -> FloatArray:
        """Centre of the camera, and the ends of its axes at the distance of what it sees [4, 3]."""
        return _frame_points(self.T_known_camera, self.known_distance)


def recognize(
    place: LocalizationMap, grey: "np.ndarray", result: FrameResult, known_camera: bool
) -> RecognizedFrame | None:
    """A frame in a known place; None where it does not show it.

    Args:
        grey: [h, w], image of the frame.
        result: of the frame, with the run's own depth.
        known_camera: the result's focal length is exact.
    """
    factor = grey.shape[1] / result.transform.source_size[0]
    scale = Scale(factor, (grey.shape[1], grey.shape[0]))
    camera_model = result.intrinsics.camera_model.scaled(factor) if known_camera else None
    located = place.find(grey, scale, camera_model)
    if not isinstance(located, LocatedImage):
        return None
    matched, T = located.matched, located.fit.T_world_camera
    depth = (matched.points - T[:3, 3]) @ T[:3, 2]
    own = DepthReader.from_result(result, scale).sample(matched.uv)
    both = (own > 0) & (depth > 0)
    if both.sum() < place.config.run.min_depths:
        return None
    known_distance = float(np.median(depth[both]))
    ratio = float(np.median(depth[both] / own[both]))
    return RecognizedFrame(result.index, T, known_distance, known_distance / ratio)


def fit_frames(
    recognized: Sequence[RecognizedFrame],
    own: Mapping[int, tuple[FloatArray, float]],
    present: Similarity | None,
    config: RunAlignmentConfig = DEFAULT_LOCALIZATION.run,
) -> Similarity | None:
    """The similarity from the run's world to the known one that most of the latest recognized frames agree with.

    Args:
        own: present pose [4, 4] in the run's world, and depth scale, of each of these frames.
        present: similarity in use, which stays where as many frames agree with it as with another one.
    """
    latest = recognized[-config.recent :]
    if not latest:
        return present
    known = np.array([each.known_points() for each in latest])
    mine = np.array([_frame_points(own[each.index][0], each.distance * own[each.index][1]) for each in latest])
    distance = np.array([each.known_distance for each in latest])

    def agrees(S: Similarity) -> "np.ndarray":
        return np.asarray(np.linalg.norm(S.apply(mine) - known, axis=2).max(axis=1) < config.max_error * distance)

    candidates = [] if present is None else [present]
    candidates += [align(mine[k], known[k]) for k in range(len(latest) - 1, -1, -1)]
    best = max(candidates, key=lambda S: int(agrees(S).sum()))
    if not agrees(best).any():
        return present
    for _ in range(config.rounds):
        good = agrees(best)
        error = np.linalg.norm(best.apply(mine[good]) - known[good], axis=2).mean(axis=1) / distance[good]
        spread = max(1.48 * float(np.median(error)), 1e-4)
        weight = np.repeat(1 / (distance[good] ** 2 * (1 + (error / spread) ** 2)), 4)
        refined = align(mine[good].reshape(-1, 3), known[good].reshape(-1, 3), weight)
        if not 1e-6 < refined.scale < 1e6 or agrees(refined).sum() < good.sum():
            break
        best = refined
    return best


def _frame_points(T: FloatArray, distance: float) -> FloatArray:
    return np.concatenate([T[None, :3, 3], T[:3, 3] + distance * T[:3, :3].T])
