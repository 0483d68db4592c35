"""Videos without images: features of known points, depth maps, and poses of a network that drifts.

`Video` is a short one in a room, with faults of network and images as `Case` says. `Walk` is a long one round a course.
Both are read as images by refinement.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import ImageTransform
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.frame_data import DepthGrid, DepthOf, DepthReader, FrameData, Scale
from stream_recon.app.slam.matching.features import Features

FloatArray = NDArray[np.float64]

SIZE = (640, 480)
SMALL = (96, 72)
"""Size of depth maps."""
CAMERA = CameraModel(480.0, SIZE[0] / 2, SIZE[1] / 2)
HALF = np.array([3.0, 1.8, 3.5])
"""Half sides of the room."""
BOXES = 6
COUNT = 20
"""Keyframes."""
LANDMARKS = 5000
NEAR = 0.9
"""Depth of a moving object."""
FADING = 0.3
"""Spread of a point's strength from frame to frame, relative to that among points; strong ones are detected."""
WRONG = 0.08
"""Share of a keyframe's features that are at random positions."""


@dataclass(frozen=True)
class Case:
    """Properties of a video; frames are numbered from 0 to `COUNT` - 1."""

    motion: str = "sideways"
    turn_deg: float = 0.4
    """Standard deviation of the network's rotation from frame to frame."""
    move: float = 0.1
    """Of the log length of its steps."""
    focal: float = 1.05
    """Ratio of the network's focal length to the true one; its turns and depth fit it."""
    depth_noise: float = 0.04
    """Of the log scale of a depth map."""
    scale_jump: float = 1.0
    """Factor of the network's lengths from the middle on."""
    features: int = 280
    noise_px: float = 0.5
    wrong: float = WRONG
    words: int | None = None
    """Number of different looks, where texture repeats; None: each point has its own."""
    blurred: tuple[int, int] = (0, 0)
    """Frames, from and to, with a third of the features and five times the noise."""
    cut: int | None = None
    """Frame from which another place is seen."""
    object_share: float = 0.0
    """Of the image's width and height that a moving object covers."""
    object_frames: tuple[int, int] = (0, COUNT)
    object_texture: float = 1.0
    """Density of features on the object, as a multiple of that elsewhere."""


def path(motion: str, random: np.random.Generator) -> FloatArray:
    """Poses [COUNT, 4, 4] in the room."""
    t, zero = np.linspace(0, 1, COUNT), np.zeros(COUNT)
    a, b = random.uniform(0.7, 1.3, 2)
    turn = np.stack([0.1 * np.sin(7 * a * t), 1.1 * b * t, 0.02 * np.sin(5 * t)], axis=1)
    centre = np.stack([1.2 * b * np.sin(2 * t), 0.1 * np.sin(9 * a * t), t - 1], axis=1)
    if motion == "forward":
        centre, turn = np.stack([0.03 * np.sin(6 * a * t), zero, 3.0 * t - 2.5], axis=1), 0.05 * turn
    elif motion == "rotation":
        centre, turn = 0.002 * random.normal(size=(COUNT, 3)), 1.6 * turn
    elif motion == "pause":
        stop = np.clip(t, 0, 0.35) + np.clip(t - 0.7, 0, None)
        turn = np.stack([0.1 * np.sin(7 * stop), 1.4 * stop, zero], axis=1)
        centre = np.stack([1.6 * np.sin(2 * stop), zero, 1.4 * stop - 1], axis=1)
    elif motion == "down":
        # Straight down, with turns about the axis by up to half a circle.
        spin = np.cumsum(random.choice([0.4, 1.5, 2.6, np.pi, -1.3], COUNT))
        centre = np.stack([1.2 * np.sin(6 * t), -1.2 + zero, 1.2 * np.cos(4 * a * t)], axis=1)
        R = so3.exp(np.stack([zero - np.pi / 2, zero, zero], axis=1)) @ so3.exp(np.stack([zero, zero, spin], axis=1))
        return _poses(R @ so3.exp(0.05 * random.normal(size=(COUNT, 3))), centre)
    elif motion == "photographs":
        turn, centre = turn + 0.2 * random.normal(size=(COUNT, 3)), centre + 0.25 * random.normal(size=(COUNT, 3))
    return _poses(so3.exp(turn * (0, 1, 0)) @ so3.exp(turn * (1, 0, 1)), centre)


def _poses(R: FloatArray, centre: FloatArray) -> FloatArray:
    T = np.tile(np.eye(4), (len(R), 1, 1))
    T[:, :3, :3], T[:, :3, 3] = R, centre
    return T


def drifted(
    truth: FloatArray,
    random: np.random.Generator,
    turn_deg: float,
    move: float,
    focal: float = 1.0,
    lengths: FloatArray | float = 1.0,
) -> FloatArray:
    """Poses [N, 4, 4] of a network, whose errors a frame add up.

    ``turn_deg``: of rotation; ``move``: of the log length of steps; ``focal``: ratio of the network's focal length to
    the true one; ``lengths``: factors of the steps.
    """
    steps = invert_pose(truth[:-1]) @ truth[1:]
    noise = np.radians(turn_deg) / np.sqrt(3) * random.normal(size=(len(steps), 3))
    steps[:, :3, :3] = so3.exp(so3.log(steps[:, :3, :3]) / focal) @ so3.exp(noise)
    steps[:, :3, 3] *= np.exp(move * random.normal(size=(len(steps), 1)))
    steps[:, :3, 3] *= np.broadcast_to(lengths, len(steps))[:, None]
    poses = [truth[0]]
    for step in steps:
        poses.append(poses[-1] @ step)
    return np.array(poses)


def unit(looks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Descriptors of length 1."""
    return np.asarray(looks / np.linalg.norm(looks, axis=1, keepdims=True), np.float32)


def observed(looks: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    """Descriptors with the noise of another image."""
    return unit(looks + np.float32(0.04) * random.normal(size=looks.shape).astype(np.float32))


@dataclass(frozen=True)
class Place:
    """A room with boxes and landmarks on all surfaces."""

    low: FloatArray  # [B, 3]
    high: FloatArray  # [B, 3]

    @classmethod
    def draw(cls, random: np.random.Generator) -> "Place":
        centre = random.uniform(-1, 1, (BOXES, 3)) * HALF
        centre[:, 2] = np.abs(centre[:, 2]) * 0.6 + 0.8
        centre[:, 1] = HALF[1] - 0.4
        half = random.uniform(0.2, 0.6, (BOXES, 3))
        return cls(centre - half, centre + half)

    def cast(self, T: FloatArray, uv: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Surface points [N, 3] at pixels [N, 2] of a camera, and their depths [N]."""
        rays = np.concatenate([CAMERA.rays(uv), np.ones((len(uv), 1))], axis=1) @ T[:3, :3].T
        rays = np.where(np.abs(rays) < 1e-9, 1e-9, rays)
        z = (np.where(rays > 0, HALF - T[:3, 3], -HALF - T[:3, 3]) / rays).min(axis=1)
        sides = (np.stack([self.low, self.high])[:, :, None] - T[:3, 3]) / rays
        near, far = sides.min(axis=0).max(axis=-1), sides.max(axis=0).min(axis=-1)
        z = np.minimum(z, np.where((near < far) & (near > 0.05), near, np.inf).min(axis=0))
        return T[:3, 3] + z[:, None] * rays, z


@dataclass
class Video:
    """A generated video; also `keyframe_matching.Images`."""

    case: Case
    seed: int
    draw: int
    scale: Scale = field(default_factory=lambda: Scale.from_source_size(SIZE))

    def __post_init__(self) -> None:
        random = np.random.default_rng([self.seed, 0])
        self.truth = path(self.case.motion, random)
        self._places = [Place.draw(random), Place.draw(random)]
        self._transform = ImageTransform(SIZE, (0.0, 0.0, float(SIZE[0]), float(SIZE[1])), SMALL)

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, 1, self.draw, *key])

    def _part(self, k: int) -> int:
        return int(self.case.cut is not None and k >= self.case.cut)

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Intervals of frames that show one place."""
        return list(pairwise(sorted({0, self.case.cut or 0, COUNT})))

    @cached_property
    def guess(self) -> FloatArray:
        """The network's poses [COUNT, 4, 4]."""
        random, jump = np.random.default_rng([self.seed, 2]), np.ones(COUNT - 1)
        jump[COUNT // 2 :] = self.case.scale_jump
        return drifted(self.truth, random, self.case.turn_deg, self.case.move, self.case.focal, jump)

    @cached_property
    def _landmarks(self) -> list[tuple[FloatArray, NDArray[np.float32]]]:
        """Positions [M, 3] and descriptors [M, 128] of each place's points, the strongest first."""
        landmarks = []
        for number, place in enumerate(self._places):
            random = np.random.default_rng([self.seed, 3, number])
            each = LANDMARKS // COUNT
            T = self.truth
            points = np.concatenate([place.cast(pose, random.random((each, 2)) * SIZE)[0] for pose in T])
            points = random.permutation(points)
            landmarks.append((points, self._looks(random, len(points))))
        return landmarks

    def _looks(self, random: np.random.Generator, count: int) -> NDArray[np.float32]:
        looks = random.normal(size=(self.case.words or count, 128)).astype(np.float32)
        return unit(looks[random.permutation(np.arange(count) % len(looks))])

    def _object(self, k: int) -> tuple[FloatArray, FloatArray] | None:
        """Corners of the moving object in a frame, [2, 2] pixels, and its rotation [3, 3]; None: not there."""
        begin, end = self.case.object_frames
        if not self.case.object_share or not begin <= k < end:
            return None
        done = (k - begin) / max(end - begin - 1, 1)
        size = self.case.object_share * np.array(SIZE)
        corner = (np.array(SIZE) - size) * (done, 0.5 + 0.3 * np.sin(3 * done))
        return np.stack([corner, corner + size]), so3.exp(np.array([[0.1 * np.sin(2 * done), 0.4 * done, 0.0]]))[0]

    @cached_property
    def _object_points(self) -> tuple[FloatArray, NDArray[np.float32]]:
        """Positions [M, 3] on the object, in shares of its sides and relative depth, and descriptors."""
        random = np.random.default_rng([self.seed, 4])
        count = int(LANDMARKS * self.case.object_share**2 * self.case.object_texture / 4) + 1
        points = np.concatenate(
            [random.uniform(-0.5, 0.5, (count, 2)), random.uniform(-0.15, 0.15, (count, 1))], axis=1
        )
        return points, self._looks(random, count)

    def _on_object(self, corners: FloatArray, R: FloatArray) -> FloatArray:
        """Pixels [M, 2] of the object's points."""
        middle, size = corners.mean(axis=0), corners[1] - corners[0]
        scale = NEAR * np.array([*(size / CAMERA.focal), 1.0])
        centre = NEAR * np.array([*((middle - np.array(SIZE) / 2) / CAMERA.focal), 1.0])
        points = (self._object_points[0] * scale) @ R.T + centre
        return CAMERA.pixels(points[:, :2] / points[:, 2:])

    @cached_property
    def _depths(self) -> list[NDArray[np.float32]]:
        x, y = np.meshgrid((np.arange(SMALL[0]) + 0.5) / SMALL[0], (np.arange(SMALL[1]) + 0.5) / SMALL[1])
        uv = np.stack([x.ravel(), y.ravel()], axis=1) * SIZE
        depths = []
        for k, T in enumerate(self.truth):
            random = self._random(5, k)
            z = self._places[self._part(k)].cast(T, uv)[1].reshape(SMALL[::-1])
            moving = self._object(k)
            if moving is not None:
                (left, top), (right, bottom) = (moving[0] * SMALL / np.array(SIZE)).astype(int)
                z[top:bottom, left:right] = NEAR
            # Errors of a network are smooth.
            wave = 0.03 * np.sin(random.uniform(3, 8) * x + random.uniform(0, 6)) * np.cos(random.uniform(3, 8) * y)
            factor = self.case.focal * np.exp(self.case.depth_noise * random.normal() + wave)
            depths.append((z * factor * (self.case.scale_jump if k > COUNT // 2 else 1)).astype(np.float32))
        return depths

    def _reader(self, k: int) -> DepthReader:
        return DepthReader(self._depths[k], np.ones(SMALL[::-1], np.uint8), self._transform, self.scale)

    def views(self) -> list[FrameData]:
        focal = self.case.focal * CAMERA.focal
        return [FrameData(k, T, focal, self._reader(k).grid(), 100.0) for k, T in enumerate(self.guess)]

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8], DepthOf]]:
        for k in positions:
            yield k, np.full(SIZE[::-1], 128, np.uint8), partial(self._reader, k)

    def features(self) -> list[Features]:
        return [self._detected(k) for k in range(COUNT)]

    def _detected(self, k: int) -> Features:
        case, random, T = self.case, self._random(6, k), self.truth[k]
        points, looks = self._landmarks[self._part(k)]
        local = (points - T[:3, 3]) @ T[:3, :3]
        ahead = np.flatnonzero(local[:, 2] > 0.2)
        uv = CAMERA.pixels(local[ahead, :2] / local[ahead, 2:])
        inside = ((uv > 0) & (uv < SIZE)).all(axis=1) & (random.random(len(uv)) < 0.8)
        ahead, uv = ahead[inside], uv[inside]
        visible = self._places[self._part(k)].cast(T, uv)[1] > 0.98 * local[ahead, 2]
        uv, looks = uv[visible], looks[ahead[visible]]
        strength = ahead[visible] / len(points)
        moving = self._object(k)
        if moving is not None:
            outside = ~((uv > moving[0][0]) & (uv < moving[0][1])).all(axis=1)
            on_object, own = self._on_object(*moving), self._object_points[1]
            uv, looks = np.concatenate([uv[outside], on_object]), np.concatenate([looks[outside], own])
            strength = np.concatenate([strength[outside], np.linspace(0, 1, len(own))])
        is_blurred = case.blurred[0] <= k < case.blurred[1]
        count, noise = (case.features // 3, 5 * case.noise_px) if is_blurred else (case.features, case.noise_px)
        rows = np.argsort(strength + FADING * random.random(len(uv)))[:count]
        uv = uv[rows] + noise * random.normal(size=(len(rows), 2))
        wrong = random.random(len(rows)) < case.wrong
        uv[wrong] = random.random((int(wrong.sum()), 2)) * SIZE
        pixels = uv.clip(0, np.array(SIZE) - 1).astype(np.float32)
        return Features(pixels, observed(looks[rows], random), self._reader(k).sample(pixels))

    def error(self, T: FloatArray) -> float:
        """ATE / path over the parts that show one place; of a camera that only turns, degrees a step."""
        of_parts = []
        for begin, end in self.parts:
            errors = pose_errors(T[begin:end], self.truth[begin:end], np.ones(end - begin - 1, bool))
            of_parts.append((errors.rpe_rot_deg if self.case.motion == "rotation" else errors.ate_over_path) or 0.0)
        return float(np.mean(of_parts))


LAP, PACE = 2500, 0.04
"""Frames of a walk once round its course, and units of the way a frame."""
WALK_FEATURES, WALK_LANDMARKS = 400, 130
"""Of a keyframe at most; of each unit of the way."""
WALK_CAMERA = CameraModel(400.0, SIZE[0] / 2, SIZE[1] / 2)
WALK_DEPTH = 4.4


def course(frames: int) -> FloatArray:
    """Poses [N, 4, 4] round a course with bends, looking outward; laps differ a little."""
    s = np.arange(frames) / LAP * 2 * np.pi
    radius, bend, lap = LAP * PACE / (2 * np.pi), 1 + 0.15 * np.sin(3 * s), 0.1 * np.sin(s / 3.7)
    across = radius * bend + lap
    sway = np.stack([0.05 * np.sin(23 * s), s + 0.1 * np.sin(17 * s), 0.02 * np.sin(31 * s)], axis=1)
    R = so3.exp(sway * (0, 1, 0)) @ so3.exp(sway * (1, 0, 1))
    return _poses(R, np.stack([across * np.sin(s), 0.1 * np.sin(9 * s), across * np.cos(s)], axis=1))


class Walk:
    """A video round a course, `keyframe_matching.Images`; points come again after `LAP` frames."""

    def __init__(self, truth: FloatArray, guess: FloatArray) -> None:
        self.truth, self.guess = truth, guess
        self.scale = Scale.from_source_size(SIZE)
        random = np.random.default_rng(2)
        first = truth[:LAP]
        count = int(WALK_LANDMARKS * PACE * len(first))
        stands = first[random.integers(0, len(first), count)]
        z = random.uniform(3.0, 6.0, count)
        local = np.stack([random.uniform(-0.8, 0.8, count) * z, random.uniform(-0.6, 0.6, count) * z, z], axis=1)
        self._points = np.einsum("nij,nj->ni", stands[:, :3, :3], local) + stands[:, :3, 3]
        self._looks = unit(random.normal(size=(count, 128)).astype(np.float32))
        self._tree = cKDTree(self._points)
        size = float(SIZE[0]), float(SIZE[1])
        depth = np.full((168, 224), WALK_DEPTH, np.float32)
        transform = ImageTransform(SIZE, (0.0, 0.0, *size), (224, 168))
        self._reader = DepthReader(depth, np.ones(depth.shape, np.uint8), transform, self.scale)

    def features(self, positions: Sequence[int]) -> list[Features]:
        return [self._detected(k) for k in positions]

    def views(self) -> list[FrameData]:
        grid = self._reader.grid()
        scales = np.exp(0.05 * np.random.default_rng(3).normal(size=len(self.guess)))
        return [
            FrameData(k, T, 1.05 * WALK_CAMERA.focal, DepthGrid(grid.u, grid.v, grid.z * np.float32(scale)), 100.0)
            for k, (T, scale) in enumerate(zip(self.guess, scales, strict=True))
        ]

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8], DepthOf]]:
        for k in positions:
            yield k, np.full(SIZE[::-1], 128, np.uint8), lambda: self._reader

    def _detected(self, k: int) -> Features:
        """Features of a frame."""
        random = np.random.default_rng(k)
        T = self.truth[k]
        near = np.array(self._tree.query_ball_point(T[:3, 3], 8.0), np.intp)
        local = (self._points[near] - T[:3, 3]) @ T[:3, :3]
        near, local = near[local[:, 2] > 1], local[local[:, 2] > 1]
        uv = WALK_CAMERA.pixels(local[:, :2] / local[:, 2:])
        inside = np.flatnonzero(((uv > 0) & (uv < SIZE)).all(axis=1) & (random.random(len(uv)) < 0.8))[:WALK_FEATURES]
        looks = observed(self._looks[near[inside]], random)
        z = local[inside, 2] * np.exp(0.05 * random.normal() + 0.03 * random.normal(size=len(inside)))
        uv = uv[inside] + 0.5 * random.normal(size=(len(inside), 2))
        return Features(uv.astype(np.float32), looks, z.astype(np.float32))
