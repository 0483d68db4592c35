"""Pieces of data set folders: a camera path with known poses, numbered images, depth images."""

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthMap, GroundTruth
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.scene import Scene
from tests.app.media import number_of, numbered_image

SIZE = (64, 48)


@dataclass(frozen=True)
class Pose:
    """Axis times angle and position; matrix and quaternion come from it by two ways that share no code."""

    turn: tuple[float, float, float]
    position: tuple[float, float, float]

    @property
    def matrix(self) -> NDArray[np.float64]:
        T = np.eye(4)
        T[:3, :3], T[:3, 3] = cv2.Rodrigues(np.array(self.turn))[0], self.position
        return T

    @property
    def xyzw(self) -> list[float]:
        angle = float(np.linalg.norm(self.turn))
        axis = np.array(self.turn) / angle
        return [*(axis * np.sin(angle / 2)), float(np.cos(angle / 2))]

    def tum(self, timestamp: float | str) -> str:
        return " ".join(str(v) for v in [timestamp, *self.position, *self.xyzw])


def camera_path(count: int) -> list[Pose]:
    return [Pose((0.1 + 0.2 * i, -0.3, 0.05 * i), (0.5 * i, 1.0 - i, 0.25 * i + 2)) for i in range(count)]


def write_image(path: Path, number: int, size: tuple[int, int] = SIZE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), numbered_image(number, size))
    return path


def write_depth(path: Path, units: int, unknown: int = 0, size: tuple[int, int] = SIZE) -> Path:
    """One depth all over, unknown in the top left pixel."""
    image = np.full((size[1], size[0]), units, np.uint16)
    image[0, 0] = unknown
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), image)
    return path


def write_lines(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


def matrix_line(T: NDArray[np.float64], rows: int = 4) -> str:
    return " ".join(f"{v:.12g}" for v in T[:rows].ravel())


def only_scene(root: Path, dataset: str) -> Scene:
    """The one scene under root, recognised by its files."""
    (scene,) = find_scenes(root)
    assert scene.dataset == dataset
    return scene


def truth_of(scene: Scene) -> GroundTruth:
    truth = scene.truth()
    assert truth is not None
    return truth


def frames_of(scene: Scene, stride: int = 1, limit: int | None = None) -> list[tuple[int, float, int]]:
    """Index, timestamp and the number that the image shows."""
    with scene.open(stride, limit) as source:
        return [(frame.index, frame.timestamp, number_of(frame.rgb)) for frame in source]


def assert_poses(truth: GroundTruth, expected: dict[int, NDArray[np.float64]]) -> None:
    assert sorted(truth.poses) == sorted(expected)
    for index, pose in expected.items():
        np.testing.assert_allclose(truth.poses[index], pose, atol=1e-6)


def assert_depth(truth: GroundTruth, index: int, metres: float) -> None:
    depth = truth.depth(index)
    assert isinstance(depth, DepthMap)
    assert depth.metres[0, 0] == 0
    np.testing.assert_allclose(depth.metres[1:], metres, rtol=1e-6)


def assert_frames(scene: Scene, times: list[float], shown: list[int] | None = None) -> None:
    """Frames count from 0 with these timestamps; the images show these numbers (their own positions)."""
    frames = frames_of(scene)
    assert [index for index, _, _ in frames] == list(range(len(times)))
    np.testing.assert_allclose([time for _, time, _ in frames], times, rtol=0, atol=1e-6)
    assert [number for _, _, number in frames] == (list(range(len(times))) if shown is None else shown)


def assert_intrinsics(truth: GroundTruth, fx: float, fy: float, cx: float, cy: float) -> None:
    k = truth.intrinsics
    assert k is not None
    np.testing.assert_allclose([k.fx, k.fy, k.cx, k.cy], [fx, fy, cx, cy], rtol=1e-9)
