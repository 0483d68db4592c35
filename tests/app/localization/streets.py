"""Maps of walks along streets of houses, of made features: houses of one number look the same."""

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.types import Intrinsics
from stream_recon.app.localization.build import TrackedDepth
from stream_recon.app.localization.localize import LocalizationMap
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.feature_map import UV_STEPS, VECTOR_STEPS, FeatureMap, packed_descriptors
from stream_recon.app.result.tracks import SparseTracks
from stream_recon.app.slam.frame_data import Scale
from stream_recon.app.slam.matching.features import Features, learn_vocabulary, vlad

SIZE, FOCAL = (640, 480), 450.0
WIDTH, AWAY, EACH = 4.0, 3.0, 160
"""Width of a house, distance of the walk from it, and its features."""
BAY = 20
"""A house of a number that is larger by this has the same ground floor, and a bay in front of other walls above."""
STEP = 0.5
"""Way from one keyframe to the next."""


def street_map(
    houses: Sequence[int], draw: int, own: Similarity | None = None, recognized: float = 1.0
) -> LocalizationMap:
    """The map of a walk along houses, in the world ``own`` of that of the street.

    ``recognized``: share of the features that look as in other walks, as by another light.
    """
    random = np.random.default_rng([99, draw])
    points, looks = (np.concatenate(each) for each in zip(*map(_house, houses, range(len(houses))), strict=True))
    changed = random.random(len(points)) >= recognized
    looks[changed] = _looks(random, int(changed.sum()))
    own = own or Similarity.identity()
    lens = CameraModel(FOCAL, SIZE[0] / 2, SIZE[1] / 2)
    k = Intrinsics(FOCAL, FOCAL, SIZE[0] / 2, SIZE[1] / 2)
    stands = np.arange(0.5 * WIDTH, (len(houses) - 0.5) * WIDTH + 0.01, STEP)
    cameras, features, seen, pixels = [], [], [], []
    for number, x in enumerate(stands):
        centre = np.array([x, 0.1 * np.sin(3 * x), 0.2 * np.cos(2 * x)])
        local = points - centre
        uv = FOCAL * local[:, :2] / local[:, 2:] + (SIZE[0] / 2, SIZE[1] / 2)
        inside = np.flatnonzero(((uv > 0) & (uv < SIZE)).all(axis=1))
        noisy = _unit(looks[inside] + 0.02 * np.abs(random.normal(size=(len(inside), 128))))
        uv = uv[inside] + 0.4 * random.normal(size=(len(inside), 2))
        z = local[inside, 2] * own.scale
        features.append(Features(uv.astype(np.float32), noisy.astype(np.float32), z.astype(np.float32)))
        T = np.eye(4)
        T[:3, 3] = centre
        pose = own.move_pose(T)
        cameras.append(FrameCamera(number, number / 10, pose, pose, k, k, True, None, SIZE))
        seen.append(inside)
        pixels.append(np.rint(uv * UV_STEPS) / UV_STEPS)
    return LocalizationMap(
        _content(features, lens), cameras, TrackedDepth(_tracks(own.apply(points), seen, pixels), Scale(1.0, SIZE))
    )


def _house(number: int, place: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    random = np.random.default_rng([7, number % BAY])
    points = random.uniform((0, -1.4, AWAY), (WIDTH, 1.4, AWAY + 0.8), (EACH, 3))
    looks = _looks(random, EACH)
    if number >= BAY:
        upper = points[:, 1] < 0.6
        looks[upper] = _looks(np.random.default_rng([8, number]), int(upper.sum()))
        points[upper, 2] -= 0.9
    return points + np.array([WIDTH * place, 0.0, 0.0]), looks


def _looks(random: np.random.Generator, count: int) -> NDArray[np.float64]:
    return _unit(np.maximum(random.normal(size=(count, 128)), 0))


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(values / np.linalg.norm(values, axis=1, keepdims=True))


def _content(features: Sequence[Features], lens: CameraModel) -> FeatureMap:
    words = learn_vocabulary(features)
    assert words is not None
    return FeatureMap(
        refinement=np.zeros(16, np.uint8),
        frame=np.arange(len(features), dtype=np.int32),
        start=np.cumsum([0, *map(len, features)]).astype(np.int64),
        uv=np.rint(np.concatenate([f.uv for f in features]) * UV_STEPS).astype(np.uint16),
        z=np.concatenate([f.z for f in features]),
        descriptors=packed_descriptors(np.concatenate([f.descriptors for f in features])),
        words=words.astype(np.float16),
        vectors=np.rint(np.stack([vlad(f, words) for f in features]) * VECTOR_STEPS).astype(np.int8),
        lens=np.array(astuple(lens), np.float64),
        size=np.array(SIZE, np.int32),
    )


def _tracks(
    points: NDArray[np.float64], seen: Sequence[NDArray[np.intp]], pixels: Sequence[NDArray[np.float64]]
) -> SparseTracks:
    counts = [len(each) for each in seen]
    return SparseTracks(
        points=points,
        errors=np.zeros(len(points), np.float32),
        frame=np.repeat(np.arange(len(seen)), counts).astype(np.int32),
        point=np.concatenate(seen).astype(np.int32),
        pixel=np.concatenate(pixels).astype(np.float32),
        lens=np.array([FOCAL, SIZE[0] / 2, SIZE[1] / 2, 0.0, 0.0, 0.0]),
        source_size=np.array(SIZE, np.int32),
        loops=np.zeros((0, 2), np.int32),
    )
