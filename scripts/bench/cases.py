"""Errors of network, online back end and refinement on videos that are difficult for geometry.

Faults are inserted into a rendered walk or into a sequence with ground truth. Other cases are difficult motions and
scenes: rotation on the spot, driving straight ahead, distant photographs, one plane, ground seen from above.
"""

import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from stream_recon.app.core.ground_truth import DepthMap
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.engine.engine import Engine, load_engine
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.run.session import Output, RunOptions, Session
from stream_recon.app.stages.evaluate import RecordingBackEnd
from stream_recon.app.stages.finish import Finisher
from training.synthetic.cameras import Path as CameraPath
from training.synthetic.generator import CLUTTERED, OUTDOOR, ROOM, SceneGenerator, SceneShares

FloatArray = NDArray[np.float64]
Image = NDArray[np.uint8]

SIZE = (320, 240)
"""Rendering takes about a millisecond for a hundred pixels."""
FRAMES = 40
FOCAL = 270.0
SEED = 5
BLUR_PX = 6.0
"""Of a Gaussian, at 640 pixels of width."""
FAINT = 4.0
"""Grey levels; the spread of what is seen on a floor that is nearly blank."""
ABOVE = 1.4
"""Height over the floor, in the plane's unit."""


@dataclass(frozen=True)
class Clip:
    """Frames with truth."""

    images: list[Image]  # [h, w, 3]
    T_world_camera: FloatArray  # [N, 4, 4]
    focal: tuple[float, float]
    depth: list[NDArray[np.floating]] | None = None  # [h, w]
    parts: tuple[int, ...] = ()
    """Frames at which something else begins: what lies on either side is compared with the truth for itself."""

    def take(self, frames: Sequence[int], parts: tuple[int, ...] = ()) -> "Clip":
        depth = None if self.depth is None else [self.depth[k] for k in frames]
        return Clip([self.images[k] for k in frames], self.T_world_camera[list(frames)], self.focal, depth, parts)

    def change(self, alter: Callable[[int, Image], Image]) -> "Clip":
        return replace(self, images=[alter(k, image) for k, image in enumerate(self.images)])


def bench_cases(
    sequence: Path | None = None,
    stride: int = 1,
    count: int | None = None,
    only: str | None = None,
    seed: int = SEED,
) -> None:
    """Print a line for each case.

    Args:
        sequence: sequence that gets the faults; None: a rendered walk.
        count: frames of each case; None: `FRAMES`.
        only: names separated by commas; None: all that fit the sequence.
        seed: seed of the rendered scenes.
    """
    frames = count or FRAMES
    walk = cache(
        lambda: rendered("walk", frames, seed) if sequence is None else read_sequence(sequence, stride, frames)
    )

    def walked(put: Callable[[Clip], Clip]) -> Clip:
        return put(walk())

    cases: dict[str, Callable[[], Clip]] = {name: partial(walked, put) for name, put in FAULTS.items()}
    if sequence is None:
        cases |= {name: partial(rendered, name, frames, seed) for name in MOTIONS}
        cases |= {"plane": lambda: plane(frames, False), "faint floor with half turns": lambda: plane(frames, True)}
    wanted = list(cases) if only is None else only.split(",")
    unknown = set(wanted) - set(cases)
    if unknown:
        raise SystemExit(f"no case is called {', '.join(sorted(unknown))}; there are {', '.join(cases)}")
    print("| case | ATE / path: network | first | last | refined | degrees a step | AbsRel |\n|---" + "|---" * 6 + "|")
    engine = load_engine()
    for name in wanted:
        print(f"| {name} | {_figures(engine, cases[name]())} |", flush=True)


def _figures(engine: Engine, clip: Clip) -> str:
    with tempfile.TemporaryDirectory() as place:
        scene = written(clip, Path(place) / "sequence")
        truth = scene.truth()
        evaluator, network = Evaluator(truth), Evaluator(truth)
        engine.reset()
        folder = Path(place) / "result"
        with scene.open() as source:
            output = Output(folder, RunInfo.from_engine(engine, source.name, {}))
            with Session(engine, source, scene.open, RunOptions("full"), output) as session:
                assert session.back_end is not None
                session.reconstruct([evaluator], back_end=RecordingBackEnd(session.back_end, network))
        online = [network.poses(), evaluator.poses(causal=True), evaluator.poses()]
        depth = [network.depth_errors(), evaluator.depth_errors(causal=True), evaluator.depth_errors()]
        Finisher(folder, scene.open, listeners=[evaluator]).refine()
        poses, depths = [*online, evaluator.poses()], [*depth, evaluator.depth_errors()]
        index = np.array([camera.index for camera in read_result(folder).cameras])
    ate, turn = zip(*(clip_errors(T, index, clip) for T in poses), strict=True)
    if _turns_on_the_spot(clip):
        # There is no path to speak of.
        ratios = ["-", *(f"- ({value / max(turn[0], 1e-9):.2f} of degrees)" for value in turn[1:])]
    else:
        ratios = [f"{ate[0]:.4f}", *(f"{value:.4f} ({value / max(ate[0], 1e-9):.2f})" for value in ate[1:])]
    absrel = [f"{d.absrel:.3f}" if d.absrel is not None else "-" for d in depths]
    return " | ".join([*ratios, ", ".join(f"{value:.2f}" for value in turn), ", ".join(absrel)])


def _turns_on_the_spot(clip: Clip) -> bool:
    """Whether the camera keeps within a hundredth of the depth of what it sees."""
    if clip.depth is None:
        return False
    known = np.concatenate([depth[depth > 0][::97] for depth in clip.depth])
    return float(np.ptp(clip.T_world_camera[:, :3, 3], axis=0).max()) < 0.01 * float(np.median(known))


def clip_errors(T: FloatArray, index: NDArray[np.intp], clip: Clip) -> tuple[float, float]:
    """ATE / path and degrees a step of frames ``index``, averaged over the parts."""
    edges = [0, *clip.parts, len(clip.images)]
    found = []
    for begin, end in pairwise(edges):
        mine = (index >= begin) & (index < end)
        errors = pose_errors(T[mine], clip.T_world_camera[index[mine]], np.diff(index[mine]) == 1)
        found.append((errors.ate_over_path or 0.0, errors.rpe_rot_deg or 0.0))
    ate, turn = np.mean(found, axis=0)
    return float(ate), float(turn)


def written(clip: Clip, folder: Path) -> Scene:
    """As a sequence with truth."""
    (folder / "rgb").mkdir(parents=True)
    (folder / "depth").mkdir()
    for k, image in enumerate(clip.images):
        cv2.imwrite(str(folder / "rgb" / f"{k:06d}.png"), image[..., ::-1])
        if clip.depth is not None:
            millimetres = np.clip(1e3 * np.nan_to_num(clip.depth[k]), 0, 65535).astype(np.uint16)
            cv2.imwrite(str(folder / "depth" / f"{k:06d}.png"), millimetres)
    lines = [" ".join(map(repr, [k, *T.reshape(-1).tolist()])) for k, T in enumerate(clip.T_world_camera)]
    (folder / "poses.txt").write_text("\n".join(lines) + "\n")
    height, width = clip.images[0].shape[:2]
    fx, fy = clip.focal
    (folder / "intrinsics.txt").write_text(f"{fx} {fy} {width / 2} {height / 2} {width} {height}\n")
    return Scene("case", "sequence", folder, None)


def read_sequence(path: Path, stride: int, frames: int) -> Clip:
    scene = Scene(path.resolve().name, "sequence", path, None)
    truth = scene.truth()
    assert truth is not None and truth.intrinsics is not None, "a sequence with poses and intrinsics"
    with scene.open(stride, frames) as source:
        every = list(source)
    poses = np.array([truth.poses[frame.index] for frame in every])
    depth = [known.metres for frame in every if isinstance(known := truth.depth(frame.index), DepthMap)]
    lens = truth.intrinsics.fx, truth.intrinsics.fy
    return Clip([frame.rgb for frame in every], poses, lens, depth if len(depth) == len(every) else None)


MOTIONS: dict[str, tuple[str | None, int, float]] = {
    "turning on the spot": ("rotation", ROOM, 0.0),
    "straight ahead": ("drive", OUTDOOR, 0.0),
    "photographs": (None, ROOM, 1.0),
    "photographs of a heap": (None, CLUTTERED, 1.0),
    "walk outdoors": ("walk", OUTDOOR, 0.0),
    "looking down": ("nadir", OUTDOOR, 0.0),
    "looking down with half turns": ("nadir", OUTDOOR, 0.0),
}
"""How the camera moves, where, and the share of clips that turn by 6 to 20 degrees from frame to frame."""


def rendered(name: str, frames: int, seed: int = SEED) -> Clip:
    """A clip of a scene that training never drew, by an ordinary camera."""
    motion, kind, turning = MOTIONS.get(name, ("walk", ROOM, 0.0))

    def half_turned(path: CameraPath) -> None:
        path.roll[:] += torch.tensor(half_turns(frames), dtype=torch.float32)

    alter = half_turned if "half turns" in name else None
    return render(SceneShares(turning=turning, motion=motion), kind, frames, seed, alter)


def render(
    shares: SceneShares,
    kind: int,
    frames: int,
    seed: int,
    alter: Callable[[CameraPath], None] | None = None,
) -> Clip:
    """A clip of one kind of scene; ``alter`` changes the camera's path before the scene is built."""
    generator = SceneGenerator("cpu", seed, degrade=False, shares=shares)
    layouts = generator.draw_layouts([kind], frames)
    if alter is not None:
        for layout in layouts:
            alter(layout.path)
    world, poses = generator.build(layouts)
    width, height = SIZE
    focal = torch.full((1, 2), FOCAL)
    images, depth = generator.renderer.render(world, poses, focal, height, width)
    pictures = (images[0].clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    noise = np.random.default_rng(0)
    return Clip(
        [noisy(picture, noise) for picture in pictures],
        poses[0].numpy().astype(np.float64),
        (FOCAL, FOCAL),
        list(depth[0].numpy()),
    )


def half_turns(frames: int) -> FloatArray:
    """Angles about the axis, by up to 180 degrees from frame to frame."""
    return np.cumsum(np.random.default_rng(2).choice([0.4, 1.5, 2.6, np.pi, -1.3], frames))


def noisy(image: NDArray[np.floating] | Image, noise: np.random.Generator) -> Image:
    return np.clip(image + noise.normal(0, 1.5, image.shape), 0, 255).astype(np.uint8)


def plane(frames: int, down: bool) -> Clip:
    """A camera before one textured plane; or one that looks down on a floor that is nearly blank, and turns."""
    noise = np.random.default_rng(SEED)
    side = 2400
    picture = np.zeros((side, side), np.float32)
    for cells in (30, 120, 480):
        picture += cv2.resize(noise.normal(0, 1, (cells, cells)).astype(np.float32), (side, side))
    picture = 128 + (FAINT if down else 35.0) * picture / picture.std()
    # The texture covers 8 by 8 units of the plane z = 0.
    K_picture = np.array([[side / 8, 0, side / 2], [0, side / 8, side / 2], [0, 0, 1]])
    width, height = SIZE
    K = np.array([[FOCAL, 0, width / 2], [0, FOCAL, height / 2], [0, 0, 1]])
    t = np.linspace(0, 2 * np.pi, frames)
    angles = half_turns(frames) if down else 0.1 * np.sin(2 * t)
    poses, images, depth = [], [], []
    rays = np.linalg.inv(K) @ np.stack(
        [
            *(axis.reshape(-1) + 0.5 for axis in np.meshgrid(np.arange(width), np.arange(height))),
            np.ones(width * height),
        ]
    )
    for s, angle in zip(t, angles, strict=True):
        tilt = cv2.Rodrigues(np.array([0.15 * np.sin(s), 0.25 * np.sin(1.7 * s), 0.0]))[0]
        T = np.eye(4)
        T[:3, :3] = tilt @ cv2.Rodrigues(np.array([0.0, 0.0, angle]))[0]
        T[:3, 3] = 0.7 * np.sin(s), 0.5 * np.cos(1.4 * s), -ABOVE - 0.2 * np.sin(1.3 * s)
        R, centre = T[:3, :3].T, T[:3, 3]
        H = K @ np.column_stack([R[:, 0], R[:, 1], -R @ centre]) @ np.linalg.inv(K_picture)
        seen = cv2.warpPerspective(picture, H, SIZE, flags=cv2.INTER_AREA, borderMode=cv2.BORDER_REFLECT)
        images.append(noisy(np.repeat(seen[..., None], 3, axis=2), noise))
        depth.append((-centre[2] / (T[2, :3] @ rays)).reshape(height, width).astype(np.float32))
        poses.append(T)
    return Clip(images, np.array(poses), (FOCAL, FOCAL), depth)


def blurred(image: Image) -> Image:
    return np.asarray(cv2.GaussianBlur(image, None, BLUR_PX * image.shape[1] / 640), np.uint8)


def blurred_interval(clip: Clip) -> Clip:
    middle = len(clip.images) // 2
    return clip.change(lambda k, image: blurred(image) if middle - 4 <= k < middle + 4 else image)


def blank_interval(clip: Clip) -> Clip:
    middle, noise = len(clip.images) // 2, np.random.default_rng(1)
    return clip.change(
        lambda k, image: noisy(np.full_like(image, 90), noise) if middle - 3 <= k < middle + 3 else image
    )


def static_interval(clip: Clip) -> Clip:
    count, noise = len(clip.images), np.random.default_rng(2)
    frames = [*range(count // 2), *[count // 2] * (count // 4), *range(count // 2 + 1, count)]
    return clip.take(frames).change(lambda k, image: noisy(image, noise))


def moving_patch(clip: Clip) -> Clip:
    """A quarter of the image, with more texture than all else."""
    noise = np.random.default_rng(3)
    height, width = clip.images[0].shape[:2]
    small = noise.integers(0, 255, (height // 12, width // 12, 3), dtype=np.uint8)
    patch = cv2.resize(small, (width // 2, height // 2), interpolation=cv2.INTER_CUBIC)
    count = len(clip.images)

    def put(k: int, image: Image) -> Image:
        covered = image.copy()
        left = round((width - width // 2) * k / max(count - 1, 1))
        covered[height // 4 : height // 4 + patch.shape[0], left : left + patch.shape[1]] = patch
        return covered

    return clip.change(put)


def swapped_halves(clip: Clip) -> Clip:
    """The second half comes first: where one ends nothing is seen of where the other begins."""
    count = len(clip.images)
    middle = count // 2
    return clip.take([*range(middle, count), *range(middle)], parts=(count - middle,))


FAULTS: dict[str, Callable[[Clip], Clip]] = {
    "as it is": lambda clip: clip,
    "blurred interval": blurred_interval,
    "blank interval": blank_interval,
    "static interval": static_interval,
    "blurred": lambda clip: clip.change(lambda k, image: blurred(image)),
    "moving patch": moving_patch,
    "cut": swapped_halves,
}


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("sequence", type=Path, nargs="?", metavar="SEQUENCE", help="default: a rendered walk")
    parser.add_argument("--frames", type=int, default=FRAMES)
    parser.add_argument("--stride", type=int, default=1)
    parser.add_argument("--only", help="names of cases, separated by commas")
    parser.add_argument("--seed", type=int, default=SEED, help="of the rendered scenes")


def run(options: Namespace) -> None:
    bench_cases(options.sequence, options.stride, options.frames, options.only, options.seed)
