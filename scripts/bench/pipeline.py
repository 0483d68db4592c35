"""Frame rate of the program compared with its network's: real decoding, resizing and writing around a step that sleeps.

A step on a GPU leaves the CPU to the other threads, so a pause of the same length replaces it. Depth and poses are the
sample's ground truth, repeated with an offset for each repetition, so that the cloud grows as in a new room.
"""

import os
import shutil
import subprocess
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, cast

import cv2
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from bench import SAMPLE
from stream_recon.app.cli.progress import TerminalObserver
from stream_recon.app.core.types import Frame, FrameEngine, FrameResult, ImageTransform, Intrinsics, PreparedFrame
from stream_recon.app.core.voxels import VoxelTable
from stream_recon.app.result import cloud, writer
from stream_recon.app.result.cameras import CameraFiles
from stream_recon.app.result.files import PlyFile
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.preprocess import prepare
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.schema import load_preset

VIDEO_SIZE = (1920, 1080)
NETWORK_SIZE = (504, 378)
"""The largest that the full-size preset takes for usual cameras."""
LAP_M = 0.3
"""Offset between two repetitions of the sample, so that new voxels appear at a usual rate."""


class Watch:
    """Milliseconds of calls by name: wall clock, and processor time of the calling thread."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[float, float]]] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.note(name, wall, cpu)

        return call

    def note(self, name: str, wall: float, cpu: float) -> None:
        """From the readings ``wall`` and ``cpu`` to now."""
        self.calls.setdefault(name, []).append((time.perf_counter() - wall, time.thread_time() - cpu))

    def lines(self) -> Iterator[str]:
        for name, spent in self.calls.items():
            wall, cpu = (1e3 * np.array(spent)).T
            shown = f"{median(wall):.2f} ms (p95 {np.percentile(wall, 95):.2f}), processor {cpu.mean():.2f} ms"
            yield f"| {name} | {shown} |"


class StandIn:
    """An engine whose step is a pause of ``seconds``."""

    device, attention, submaps, reference_frames, threads = "cpu", "none", 1, (), 0

    def __init__(self, seconds: float, watch: Watch) -> None:
        self._seconds, self._watch = seconds, watch
        with np.load(SAMPLE.with_suffix(".truth.npz")) as truth:
            self._poses = truth["T_world_camera"]
            self._focal = truth["intrinsics"][0] / (2 * truth["intrinsics"][2])
            self._every = int(truth["depth_frames"][1])
            depths = [cv2.resize(depth.astype(np.float32), NETWORK_SIZE) for depth in truth["depth"]]
        # Scale frames lie at distance 1, as a network's do.
        self._unit = float(np.mean(depths[0]))
        self._depths = [depth / self._unit for depth in depths]
        self._left: tuple[float, float] | None = None

    def prepare(self, frame: Frame) -> PreparedFrame:
        height, width = frame.rgb.shape[:2]
        return prepare(frame, ImageTransform((width, height), (0.0, 0.0, float(width), float(height)), NETWORK_SIZE))

    def push(self, frame: PreparedFrame) -> list[FrameResult]:
        if self._left is not None:
            self._watch.note("stepping thread between two steps, waiting included", *self._left)
        end = time.perf_counter() + self._seconds
        result = self._result(frame)
        time.sleep(max(0.0, end - time.perf_counter()))
        self._left = time.perf_counter(), time.thread_time()
        return [result]

    def finish(self) -> list[FrameResult]:
        return []

    def _result(self, frame: PreparedFrame) -> FrameResult:
        lap, place = divmod(frame.index, len(self._poses))
        depth = self._depths[place // self._every].copy()
        pose = self._poses[place].copy()
        pose[:3, 3] = (pose[:3, 3] + [0, 0, LAP_M * lap]) / self._unit
        width, height = frame.transform.source_size
        focal = self._focal * width
        camera = Intrinsics(focal, focal, width / 2, height / 2)
        confidence, keyframe = 1 + 4 / (1 + depth), place % 6 == 0
        return FrameResult(
            frame.index, frame.timestamp, pose, camera, depth, confidence, frame.rgb, frame.transform, keyframe, 2.0
        )


@contextmanager
def watched_parts(watch: Watch, engine: type) -> Iterator[None]:
    """Time the program's own functions where its threads call them; ``engine``: whose images are prepared."""
    parts: tuple[tuple[Any, str, str], ...] = (
        (Source, "__next__", "decoding thread: decode, colours"),
        (engine, "prepare", "decoding thread: resize"),
        (writer.ResultWriter, "add", "writing thread: a frame"),
        (writer, "write_depth", "of it, depth file"),
        (cloud, "consistent_pixels", "of it, agreement of views"),
        (cloud, "frame_points", "of it, unprojection"),
        (cloud, "transform_points", "of it, to the world"),
        (VoxelTable, "take_new", "of it, voxels"),
        (PlyFile, "append", "of it, points.ply"),
        (CameraFiles, "append", "of it, cameras"),
    )
    before = [(place, name, getattr(place, name)) for place, name, _ in parts]
    for place, name, shown in parts:
        setattr(place, name, watch.timed(shown, getattr(place, name)))
    try:
        yield
    finally:
        for place, name, function in before:
            setattr(place, name, function)


def bench_pipeline(video: Path | None, step_ms: float, frames: int, with_viewer: bool) -> None:
    """Print the program's frame rate on ``video`` (None: generated), the step's rate, and each part's time."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if video is None:
            video = folder / "generated.mp4"
            write_video(video, frames)
        preset, watch = load_preset("lingbot-map"), Watch()
        engine = StandIn(step_ms / 1000, watch)
        viewer = None
        if with_viewer:
            from stream_recon.app.viewer.viewer import Viewer

            viewer = stack.enter_context(Viewer(preset.points, port=0))
        source = stack.enter_context(open_source(str(video), FrameChoice(max_frames=frames)))
        results = writer.ResultWriter(folder / "out", RunInfo(video.name, preset, "0" * 64, engine.device))
        terminal = Console(file=stack.enter_context(Path(os.devnull).open("w")), force_terminal=True)
        with watched_parts(watch, StandIn), TerminalObserver(terminal, terminal) as show:
            summary = reconstruct(source, cast(FrameEngine, engine), results, [viewer] if viewer else [], None, show)
        print(f"| video | {describe_video(video)}, {summary.frames_read} frames |")
        fps, bare = summary.fps, 1000 / step_ms
        share = 100 * fps / bare
        print(f"| program around a step of {step_ms:g} ms | {fps:.1f} frames/s, {share:.1f} % of {bare:.1f} |")
        for line in watch.lines():
            print(line)
        if viewer is not None:
            print(f"| viewer | {viewer.skipped} frames shown without points |")


def describe_video(path: Path) -> str:
    capture = cv2.VideoCapture(str(path))
    code = int(capture.get(cv2.CAP_PROP_FOURCC)).to_bytes(4, "little").decode("ascii", "replace")
    size = "x".join(str(int(capture.get(key))) for key in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    capture.release()
    return f"{code} {size}"


def write_video(path: Path, frames: int) -> None:
    """The sample at 1080p with a finer texture that moves: H.264 where there is an encoder, else MPEG-4."""
    if has_x264():
        command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "bgr24"]
        command += ["-s", "{}x{}".format(*VIDEO_SIZE), "-r", "30", "-i", "-", "-c:v", "libx264", "-preset", "veryfast"]
        process = subprocess.Popen([*command, "-pix_fmt", "yuv420p", str(path)], stdin=subprocess.PIPE)
        assert process.stdin is not None
        for image in pictures(frames):
            process.stdin.write(image.tobytes())
        process.stdin.close()
        if process.wait():
            raise SystemExit("ffmpeg could not write a video: give one")
        return
    # Missing codecs are tried without messages.
    os.environ.setdefault("OPENCV_FFMPEG_LOGLEVEL", "-8")
    cv2.utils.logging.setLogLevel(cv2.utils.logging.LOG_LEVEL_SILENT)
    for code in ("avc1", "mp4v"):
        file = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), 30, VIDEO_SIZE)
        if file.isOpened():
            for image in pictures(frames):
                file.write(image)
            file.release()
            return
    raise SystemExit("neither ffmpeg nor OpenCV can write a video here: give one")


def has_x264() -> bool:
    if shutil.which("ffmpeg") is None:
        return False
    return "libx264" in subprocess.run(["ffmpeg", "-encoders"], capture_output=True, text=True, check=False).stdout


def pictures(frames: int) -> Iterator[NDArray[np.uint8]]:
    """BGR images [1080, 1920, 3]."""
    noise, (width, height) = np.random.default_rng(0), VIDEO_SIZE
    wide = (width + frames, height)
    texture = np.full((height, width + frames, 3), 24.0, np.float32)
    for cells in (8, 32, 128, 512):
        texture += cv2.resize(noise.normal(0, 8, (cells, 2 * cells, 3)).astype(np.float32), wide)
    grain = np.clip(texture, 0, 255).astype(np.uint8)
    capture = cv2.VideoCapture(str(SAMPLE))
    for shift in range(frames):
        ok, image = capture.read()
        if not ok:
            capture.set(cv2.CAP_PROP_POS_FRAMES, 0)
            ok, image = capture.read()
        yield cv2.add(cv2.resize(image, VIDEO_SIZE), grain[:, shift : shift + width])
    capture.release()


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("video", type=Path, nargs="?", metavar="VIDEO", help="default: a generated 1080p video")
    parser.add_argument("--frames", type=int, default=300)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--viewer", action="store_true")


def run(options: Namespace) -> None:
    bench_pipeline(options.video, options.step_ms, options.frames, options.viewer)
