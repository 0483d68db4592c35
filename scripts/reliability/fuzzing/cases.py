"""Cases, one function per kind of input: it damages an example and lets the program read it.

A case passes if the program reads the input or refuses it with a `StreamReconError`.
"""

import json
import random
import shutil
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import msgspec
import numpy as np
from safetensors.torch import save_file

from fuzzing.commands import COMMANDS
from fuzzing.faults import FAULTS, write_small_result
from fuzzing.given import camera, exif, recording, track, write_given
from fuzzing.meaning import MEANINGS
from fuzzing.mutate import WORDS, broken_bytes, broken_text
from fuzzing.serving import markup_case, serve
from fuzzing.streaming import stream
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.growing import can_begin, mark_of
from stream_recon.app.sources.image_decoding import read_depth_image, read_image
from stream_recon.app.sources.preprocess import plan_image
from stream_recon.app.sources.source import open_source
from stream_recon.app.viewer.guard import MessageGuard
from stream_recon.configs.schema import PRESET_FOLDER, load_preset
from stream_recon.models.weights import load_network
from tests.app.datasets.folders import write_depth, write_lines
from tests.app.datasets.test_calibrated import colmap, nerfstudio
from tests.app.datasets.test_rgbd import write_tum
from tests.app.datasets.test_rigs import write_euroc, write_kitti
from tests.app.datasets.test_rooms import write_scannet, write_seven_scenes
from tests.app.datasets.test_sequence import pose_line, write_poses
from tests.app.datasets.test_sequence import write_images as write_sequence_images
from tests.app.fake_engine import run_info
from tests.app.media import numbered_image, write_images, write_video
from tests.app.sources.changed_inputs import SOURCES
from tests.networks import tiny_network, tiny_preset

SAMPLE = Path(__file__).parents[3] / "app" / "sample" / "walkthrough.mp4"
CORPUS = Path(__file__).parents[3] / "tests" / "corpus" / "files"
FILMS = (".mp4", ".mkv", ".ts", ".h264", ".mpg", ".avi", ".mjpeg")
FRAMES = 24


@cache
def examples(folder: Path) -> dict[str, Path]:
    """Write undamaged inputs once; returns a folder for each kind."""
    folders = {kind: folder / kind for kind in ("videos", "images", "weights", "data", "result")}
    for kind_folder in folders.values():
        kind_folder.mkdir(parents=True)
    _write_videos(folders["videos"])
    _write_images(folders["images"])
    preset = tiny_preset()
    save_file(tiny_network(preset).state_dict(), folders["weights"] / "tiny.safetensors")
    _write_datasets(folders["data"])
    write_given(folder / "given")
    write_small_result(folders["result"], 6, interrupted=True)
    return folders


def video(folder: Path, source: Path, draw: random.Random) -> None:
    files = sorted((source / "videos").iterdir())
    chosen, other = draw.choice(files), draw.choice(files)
    path = folder / f"v{draw.choice([*{f.suffix for f in files}, '.mkv', ''])}"
    path.write_bytes(broken_bytes(chosen.read_bytes(), draw, other.read_bytes()))
    options: dict[str, Any] = draw.choice([{}, {"stride": 3}, {"fps": 7.0}, {"start": 0.5}, {"end": 1.0}])
    with open_source(str(path), FrameChoice(max_frames=FRAMES, **options)) as opened:
        if not options and draw.random() < 0.3:
            opened.skip(draw.randrange(20))
        for _ in opened:
            pass


def upload(folder: Path, source: Path, draw: random.Random) -> None:
    """A video that comes in two parts, of which the first one is decoded while the second one is awaited."""
    files = sorted((source / "videos").iterdir())
    chosen = draw.choice(files)
    path, data = folder / f"v{chosen.suffix}", broken_bytes(chosen.read_bytes(), draw, chosen.read_bytes())
    cut = draw.randrange(len(data) + 1)
    path.write_bytes(data[:cut])
    mark_of(path).write_text(json.dumps({"size": draw.choice([len(data), len(data), cut, 0])}))
    can_begin(path)

    def come() -> None:
        time.sleep(draw.random() / 10)
        with path.open("ab") as file:
            file.write(data[cut:])
        mark_of(path).unlink()

    rest = threading.Thread(target=come)
    rest.start()
    try:
        with open_source(str(path), FrameChoice(max_frames=FRAMES)) as opened:
            for _ in opened:
                if draw.random() < 0.05:
                    opened.interrupt()
    finally:
        rest.join()


def image(folder: Path, source: Path, draw: random.Random) -> None:
    files = sorted((source / "images").iterdir())
    chosen, other = draw.choice(files), draw.choice(files)
    path = folder / chosen.name
    path.write_bytes(broken_bytes(chosen.read_bytes(), draw, other.read_bytes()))
    for read in (read_image, read_depth_image):
        decoded = read(path)
        assert decoded is None or decoded.size


def checkpoint(folder: Path, source: Path, draw: random.Random) -> None:
    data = (source / "weights" / "tiny.safetensors").read_bytes()
    (folder / "w.safetensors").write_bytes(broken_bytes(data, draw, data))
    load_network(folder / "w.safetensors", tiny_preset().network)


def preset(folder: Path, source: Path, draw: random.Random) -> None:
    text = draw.choice(sorted(PRESET_FOLDER.glob("*.toml"))).read_text()
    (folder / "p.toml").write_bytes(broken_text(text, draw))
    loaded = load_preset(str(folder / "p.toml"), draw.choice([None, {"stream.window": 4}]))
    plan_image((640, 480), loaded.image, loaded.network.patch_size)


def dataset(folder: Path, source: Path, draw: random.Random) -> None:
    chosen = draw.choice(sorted((source / "data").iterdir()))
    shutil.copytree(chosen, folder / "scene" / chosen.name)
    texts = [p for p in (folder / "scene").rglob("*") if p.suffix in (".txt", ".json", ".csv", ".yaml", ".freiburg")]
    for path in draw.sample(texts, min(len(texts), draw.choice([1, 1, 2]))):
        path.write_bytes(broken_text(path.read_text(), draw))
    if draw.random() < 0.2:
        victim = draw.choice([p for p in (folder / "scene").rglob("*") if p.is_file()])
        victim.unlink()
    for scene in find_scenes(folder / "scene"):
        with scene.open() as opened:
            for _ in opened:
                pass
        truth = scene.truth()
        if truth is not None:
            for index in range(3):
                truth.depth(index)


def result(folder: Path, source: Path, draw: random.Random) -> None:
    shutil.copytree(source / "result", folder / "out")
    files = [p for p in sorted((folder / "out").rglob("*")) if p.is_file() and p.name != "points.ply"]
    for path in draw.sample(files, draw.choice([1, 1, 2])):
        if path.suffix == ".npz":
            path.write_bytes(broken_bytes(path.read_bytes(), draw))
        else:
            path.write_bytes(broken_text(path.read_text(), draw))
    read = read_result(folder / "out")
    _ = read.points
    for frame in read.readable(lambda _: None):
        assert frame.depth.shape == frame.confidence.shape == frame.rgb.shape[:2] and np.isfinite(frame.depth).all()
    unfinished = read_partial_result(folder / "out")
    if unfinished is not None:
        unfinished.check(run_info())
        ResultWriter(folder / "out", run_info(), resume=unfinished).close()


def page(folder: Path, source: Path, draw: random.Random) -> None:
    guard = MessageGuard()
    guard.find_control = {
        name: SimpleNamespace(value=value, min=0, max=95) for name, value in (("slider", 5), ("box", True))
    }.get
    camera: dict[str, Any] = {
        "type": "ViewerCameraMessage", "wxyz": [1.0, 0, 0, 0], "position": [0, 0, 0], "fov": 1.0, "near": 0.01,
        "far": 1000, "image_height": 600, "image_width": 800, "look_at": [0, 0, 1], "up_direction": [0, -1, 0],
    }  # fmt: skip
    update: dict[str, Any] = {"type": "GuiUpdateMessage", "uuid": "slider", "updates": {"value": 7}}
    others: list[dict[str, Any]] = [
        {"type": kind} for kind in ("ShareUrlRequest", "FileTransferStartUpload", "FileTransferPart", "Message")
    ]
    odd: list[Any] = [*WORDS, float("nan"), float("inf"), -1e300, 2**63, [], {}, None, True, [[[]]] * 3, b"\xff"]
    for _ in range(50):
        message = dict(draw.choice([camera, update, *others]))
        for _ in range(draw.choice([0, 1, 2])):
            message[draw.choice([*message, "props"])] = draw.choice(odd)
        try:
            raw = msgspec.msgpack.encode(message)
        except (ValueError, UnicodeError, OverflowError):
            continue
        allowed = guard.allows(raw)
        assert not allowed or message["type"] in ("ViewerCameraMessage", "GuiUpdateMessage"), message
        guard.allows(broken_bytes(raw, draw, raw))
        guard.allows(draw.choice(WORDS))


CASES: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "video": video,
    "upload": upload,
    "image": image,
    "checkpoint": checkpoint,
    "preset": preset,
    "dataset": dataset,
    "result": result,
    "page": page,
    "camera": camera,
    "track": track,
    "exif": exif,
    "recording": recording,
    **MEANINGS,
    **SOURCES,
    **FAULTS,
    **COMMANDS,
    "serve": serve,
    "markup": markup_case,
    "stream": stream,
}


def _write_videos(folder: Path) -> None:
    shutil.copy(SAMPLE, folder / "sample.mp4")
    write_video(folder / "plain.mp4", 30)
    for name, codec in (("m.avi", "MJPG"), ("x.avi", "XVID"), ("v.mkv", "mp4v")):
        writer = cv2.VideoWriter(str(folder / name), cv2.VideoWriter.fourcc(*codec), 10.0, (64, 48))
        if writer.isOpened():
            for number in range(30):
                writer.write(numbered_image(number % 31))
        writer.release()
    for path in CORPUS.iterdir():
        if path.suffix in FILMS:
            shutil.copy(path, folder)
    for path in list(folder.iterdir()):
        if path.stat().st_size < 100:
            path.unlink()


def _write_images(folder: Path) -> None:
    draw = np.random.default_rng(0)
    picture = draw.integers(0, 255, (30, 40, 3), dtype=np.uint8)
    write_images(folder, [f"a{suffix}" for suffix in (".png", ".jpg", ".bmp", ".webp", ".tif", ".ppm")], (40, 30))
    for suffix in (".png", ".jpg", ".webp", ".tif"):
        cv2.imwrite(str(folder / f"noise{suffix}"), picture)
    for path in CORPUS.iterdir():
        if path.suffix in (".jpg", ".png", ".tif", ".webp", ".avif"):
            shutil.copy(path, folder)
    cv2.imwrite(str(folder / "large.jp2"), draw.integers(0, 255, (96, 128, 3), dtype=np.uint8))
    cv2.imwrite(str(folder / "deep.png"), picture.astype(np.uint16) * 257)
    cv2.imwrite(str(folder / "alpha.png"), np.dstack([picture, picture[..., 0] // 128]))
    cv2.imwrite(str(folder / "depth.png"), picture[..., 0].astype(np.uint16) * 17)
    cv2.imwrite(str(folder / "float.tif"), picture.astype(np.float32) / 255)


def _write_datasets(folder: Path) -> None:
    """Write small scenes in the data set layouts that consist of text files."""
    tum = write_tum(folder / "rgbd_dataset_freiburg1_x")
    shutil.copytree(tum, folder / "eth3d")
    (folder / "eth3d" / "calibration.txt").write_text("20 20 8 6\n")
    write_euroc(folder / "euroc")
    write_kitti(folder / "kitti")
    write_seven_scenes(folder / "seq-01")
    write_scannet(folder / "scannet")
    nerfstudio(folder / "nerf")
    colmap(folder / "colmap")
    own = folder / "sequence"
    write_sequence_images(own, ["0.png", "1.png"])
    write_depth(own / "depth" / "0.png", 1500, size=(32, 24))
    write_poses(own, [pose_line(0, 0), pose_line(1, 1)])
    write_lines(own / "intrinsics.txt", "20 20 8 6 32 24")
    write_lines(own / "sparse" / "1.txt", "3 4 1.5", "5 6 2")
