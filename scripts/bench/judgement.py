"""Whether refinement keeps the better side, map or network, on 68 generated videos without a network, 5 times each.

Each video has features of known points, depth maps, and poses of a network that drifts; nothing is rendered. Kinds are
ordinary motions, faults of the network (focal length, scale, turns) and of the images (moving objects, cuts, blur, few
or wrong matches, noise). Each jitter draws features and noise anew. A decision is right if its error is at most 1.15
times the smaller one of map and network, or if both differ by less than 0.1 % of the path. Videos whose better side is
known beyond the spread of their jitters are counted for themselves.
"""

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bench.selection import TIE, Decision, is_known, share_right
from stream_recon.app.core import so3
from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import ImageTransform
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.slam.frame_data import DepthOf, DepthReader, FrameData, Scale
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.offline.refine import RefineOptions, refine
from stream_recon.app.slam.offline.report import IntermediateState, WarmStart

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]

SIZE = (640, 480)
SMALL = (96, 72)
"""Size of depth maps."""
FOCAL = 480.0
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
SAME = 1e-3
"""Difference of ATE / path up to which two results are equally good."""


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

    def cast(self, T: FloatArray, uv: FloatArray, lens: CameraModel) -> tuple[FloatArray, FloatArray]:
        """Surface points [N, 3] at pixels [N, 2] of a camera, and their depths [N]."""
        rays = np.concatenate([lens.rays(uv), np.ones((len(uv), 1))], axis=1) @ T[:3, :3].T
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
    lens: CameraModel = field(default_factory=lambda: CameraModel(FOCAL, SIZE[0] / 2, SIZE[1] / 2))
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
        case, random = self.case, np.random.default_rng([self.seed, 2])
        steps = invert_pose(self.truth[:-1]) @ self.truth[1:]
        turn = so3.log(steps[:, :3, :3]) / case.focal
        noise = np.radians(case.turn_deg) / np.sqrt(3) * random.normal(size=(COUNT - 1, 3))
        steps[:, :3, :3] = so3.exp(turn) @ so3.exp(noise)
        steps[:, :3, 3] *= np.exp(case.move * random.normal(size=(COUNT - 1, 1)))
        steps[COUNT // 2 :, :3, 3] *= case.scale_jump
        poses = [self.truth[0]]
        for step in steps:
            poses.append(poses[-1] @ step)
        return np.array(poses)

    @cached_property
    def _landmarks(self) -> list[tuple[FloatArray, NDArray[np.float32]]]:
        """Positions [M, 3] and descriptors [M, 128] of each place's points, the strongest first."""
        found = []
        for number, place in enumerate(self._places):
            random = np.random.default_rng([self.seed, 3, number])
            each = LANDMARKS // COUNT
            T = self.truth
            points = np.concatenate([place.cast(pose, random.random((each, 2)) * SIZE, self.lens)[0] for pose in T])
            points = random.permutation(points)
            found.append((points, self._looks(random, len(points))))
        return found

    def _looks(self, random: np.random.Generator, count: int) -> NDArray[np.float32]:
        looks = random.normal(size=(self.case.words or count, 128)).astype(np.float32)
        looks = looks[random.permutation(np.arange(count) % len(looks))]
        return np.asarray(looks / np.linalg.norm(looks, axis=1, keepdims=True), np.float32)

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
        scale = NEAR * np.array([*(size / FOCAL), 1.0])
        centre = NEAR * np.array([*((middle - np.array(SIZE) / 2) / FOCAL), 1.0])
        points = (self._object_points[0] * scale) @ R.T + centre
        return self.lens.pixels(points[:, :2] / points[:, 2:])

    @cached_property
    def _depths(self) -> list[NDArray[np.float32]]:
        x, y = np.meshgrid((np.arange(SMALL[0]) + 0.5) / SMALL[0], (np.arange(SMALL[1]) + 0.5) / SMALL[1])
        uv = np.stack([x.ravel(), y.ravel()], axis=1) * SIZE
        found = []
        for k, T in enumerate(self.truth):
            random = self._random(5, k)
            z = self._places[self._part(k)].cast(T, uv, self.lens)[1].reshape(SMALL[::-1])
            thing = self._object(k)
            if thing is not None:
                (left, top), (right, bottom) = (thing[0] * SMALL / np.array(SIZE)).astype(int)
                z[top:bottom, left:right] = NEAR
            # Errors of a network are smooth.
            wave = 0.03 * np.sin(random.uniform(3, 8) * x + random.uniform(0, 6)) * np.cos(random.uniform(3, 8) * y)
            factor = self.case.focal * np.exp(self.case.depth_noise * random.normal() + wave)
            found.append((z * factor * (self.case.scale_jump if k > COUNT // 2 else 1)).astype(np.float32))
        return found

    def _reader(self, k: int) -> DepthReader:
        return DepthReader(self._depths[k], np.ones(SMALL[::-1], np.uint8), self._transform, self.scale)

    def views(self) -> list[FrameData]:
        focal = self.case.focal * self.lens.focal
        return [FrameData(k, T, focal, self._reader(k).grid(), 100.0) for k, T in enumerate(self.guess)]

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, NDArray[np.uint8], DepthOf]]:
        for k in positions:
            yield k, np.full(SIZE[::-1], 128, np.uint8), partial(self._reader, k)

    def features(self) -> list[Features]:
        return [self._seen(k) for k in range(COUNT)]

    def _seen(self, k: int) -> Features:
        case, random, T = self.case, self._random(6, k), self.truth[k]
        points, looks = self._landmarks[self._part(k)]
        local = (points - T[:3, 3]) @ T[:3, :3]
        ahead = np.flatnonzero(local[:, 2] > 0.2)
        uv = self.lens.pixels(local[ahead, :2] / local[ahead, 2:])
        inside = ((uv > 0) & (uv < SIZE)).all(axis=1) & (random.random(len(uv)) < 0.8)
        ahead, uv = ahead[inside], uv[inside]
        visible = self._places[self._part(k)].cast(T, uv, self.lens)[1] > 0.98 * local[ahead, 2]
        uv, looks = uv[visible], looks[ahead[visible]]
        strength = ahead[visible] / len(points)
        thing = self._object(k)
        if thing is not None:
            outside = ~((uv > thing[0][0]) & (uv < thing[0][1])).all(axis=1)
            place, own = self._on_object(*thing), self._object_points[1]
            uv, looks = np.concatenate([uv[outside], place]), np.concatenate([looks[outside], own])
            strength = np.concatenate([strength[outside], np.linspace(0, 1, len(own))])
        is_blurred = case.blurred[0] <= k < case.blurred[1]
        count, noise = (case.features // 3, 5 * case.noise_px) if is_blurred else (case.features, case.noise_px)
        rows = np.argsort(strength + FADING * random.random(len(uv)))[:count]
        uv = uv[rows] + noise * random.normal(size=(len(rows), 2))
        wrong = random.random(len(rows)) < case.wrong
        uv[wrong] = random.random((int(wrong.sum()), 2)) * SIZE
        pixels = uv.clip(0, np.array(SIZE) - 1).astype(np.float32)
        descriptors = looks[rows] + np.float32(0.04) * random.normal(size=(len(rows), 128)).astype(np.float32)
        descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
        return Features(pixels, descriptors, self._reader(k).sample(pixels))

    def error(self, T: FloatArray) -> float:
        """ATE / path over the parts that show one place; of a camera that only turns, degrees a step."""
        found = []
        for begin, end in self.parts:
            errors = pose_errors(T[begin:end], self.truth[begin:end], np.ones(end - begin - 1, bool))
            found.append((errors.rpe_rot_deg if self.case.motion == "rotation" else errors.ate_over_path) or 0.0)
        return float(np.mean(found))


USUAL = Case()
GOOD, WORSE, WORST = Case(turn_deg=0.1, move=0.02), Case(turn_deg=0.8, move=0.2), Case(turn_deg=1.5, move=0.3)
EXACT = Case(turn_deg=0.06, move=0.012, focal=1.01, depth_noise=0.01)
"""A network as good as on the best real videos."""
MIDDLE = (COUNT // 3, 2 * COUNT // 3)
BRIEF = Case(object_texture=3, object_frames=MIDDLE)
KINDS: dict[str, list[Case]] = {
    "sideways": [GOOD, USUAL, WORSE, WORST],
    "forward": [replace(case, motion="forward") for case in (GOOD, USUAL, WORSE, WORST)],
    "exact network": [
        replace(EXACT, features=120),
        replace(EXACT, noise_px=2.5),
        replace(EXACT, wrong=0.5),
        replace(EXACT, motion="forward"),
    ],
    "focal length": [Case(focal=ratio) for ratio in (0.6, 0.8, 1.25, 1.6)],
    "scale of the network": [Case(scale_jump=ratio) for ratio in (0.6, 0.8, 1.3, 1.8)],
    "moving object": [Case(object_share=share, object_texture=3) for share in (0.35, 0.5, 0.65, 0.8)],
    "moving object, network right": [
        replace(EXACT, object_share=share, object_texture=texture)
        for share, texture in ((0.4, 1.0), (0.5, 4.0), (0.65, 3.0), (0.8, 2.0))
    ],
    "moving object for a while": [
        replace(EXACT, object_share=0.5, object_texture=3, object_frames=MIDDLE),
        replace(EXACT, object_share=0.8, object_texture=3, object_frames=MIDDLE),
        replace(BRIEF, object_share=0.65),
        replace(WORSE, object_share=0.8, object_texture=3, object_frames=MIDDLE),
    ],
    "cut": [replace(USUAL, cut=7), replace(USUAL, cut=10), replace(EXACT, cut=10), replace(WORSE, cut=13)],
    "blur": [
        replace(USUAL, blurred=MIDDLE),
        replace(EXACT, blurred=MIDDLE),
        replace(USUAL, blurred=(0, COUNT)),
        replace(WORSE, blurred=MIDDLE),
    ],
    "rotation": [replace(case, motion="rotation") for case in (GOOD, USUAL, WORSE, EXACT)],
    "few matches": [*(Case(features=count) for count in (70, 90, 120)), replace(WORSE, features=90)],
    "repeated texture": [*(Case(words=count) for count in (60, 200, 600)), replace(EXACT, words=200)],
    "noise": [Case(noise_px=1.5), Case(noise_px=3.0), replace(WORSE, noise_px=3.0), replace(GOOD, noise_px=2.0)],
    "turns by half a circle": [replace(case, motion="down") for case in (Case(turn_deg=20.0), USUAL, WORSE, EXACT)],
    "pause": [replace(case, motion="pause") for case in (GOOD, USUAL, WORSE, EXACT)],
    "photographs": [replace(case, motion="photographs") for case in (USUAL, WORSE, WORST, EXACT)],
}


def decide(video: Video) -> Decision | None:
    """The decision on one video; None: there is no map."""
    states: list[IntermediateState] = []
    known = WarmStart([*range(COUNT)], video.features())
    options = RefineOptions(workers=1, known=known, on_state=states.append)
    found = refine(video.views(), video, video.scale, options)
    if not states:
        return None
    why = "; ".join(sorted({str(each["why"]) for each in found.report.fallback_segments}))
    network, mapped, chosen = map(video.error, (video.guess, states[0].T_world_camera, found.T_world_camera))
    return Decision(network, mapped, chosen, why, SAME)


def bench_judgement(kinds: Sequence[str], seeds: Sequence[int], jitters: int, show: Callable[[str], None]) -> None:
    """Print a row for each kind, the wrong decisions and the sum."""
    every: list[Decision] = []
    known: list[Decision] = []
    cases, known_cases = 0, 0
    mistakes: list[tuple[float, str]] = []
    show("| kind | decisions | map is better | kept | right | worst mistake | seconds |\n|---|---|---|---|---|---|---|")
    for kind in kinds:
        began, found = time.process_time(), []
        for number, case in enumerate(KINDS[kind]):
            for seed in seeds:
                drawn = [(draw, decide(Video(case, 100 * number + seed, draw))) for draw in range(jitters)]
                own = [each for _, each in drawn if each is not None]
                found += own
                cases += bool(own)
                side = "not known"
                if own and is_known(own):
                    side, known, known_cases = "known", known + own, known_cases + 1
                for draw, each in drawn:
                    if each is not None and each.mistake > TIE:
                        errors = f"network {each.network:.4f}, map {each.mapped:.4f}, chosen {each.chosen:.4f}"
                        what = f"{kind} {number + 1}, seed {seed}.{draw}, better side {side}: {errors}; {each.why}"
                        mistakes.append((each.mistake, what))
        every += found
        better = sum(each.mapped < each.network for each in found)
        kept = sum(each.chosen != each.network for each in found)
        right = sum(each.mistake <= TIE for each in found)
        worst = max((each.mistake for each in found), default=1.0)
        seconds = (time.process_time() - began) / max(len(found), 1)
        show(f"| {kind} | {len(found)} | {better} | {kept} | {right} | {worst:.2f} | {seconds:.1f} |")
    show("\n" + "\n".join(f"{ratio:.2f} times: {text}" for ratio, text in sorted(mistakes, reverse=True)))
    show(share_right(every))
    show(f"the better side is known in {known_cases} of {cases} videos: {share_right(known)}")


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--only", help="kinds, separated by commas")
    parser.add_argument("--seeds", type=int, default=1, help="number of places and paths of each case")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--jitters", type=int, default=5, help="number of draws of features and noise")


def run(options: Namespace) -> None:
    kinds = options.only.split(",") if options.only else list(KINDS)
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise SystemExit(f"no kind is called {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    bench_judgement(
        kinds, range(options.seed, options.seed + options.seeds), options.jitters, partial(print, flush=True)
    )
