"""Cases whose right answer is known: what is read has to be right, or refused. A wrong number is a finding."""

import json
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from fuzzing.mutate import broken_text
from stream_recon.app.batch.manifest import check_files
from stream_recon.app.core.types import FrameResult
from stream_recon.app.datasets.find import find_scenes
from stream_recon.app.datasets.source_identity import source_change
from stream_recon.app.metric_scale.gps_alignment import scale_by_track
from stream_recon.app.metric_scale.gps_tracks import Positions
from stream_recon.app.metric_scale.scale_source import GpsTrack, parse_scale_source
from stream_recon.app.result.cameras import FrameCamera
from stream_recon.app.result.metric_scale import OF_FILE
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.sources.calibration import parse_camera
from stream_recon.app.sources.source import open_source
from stream_recon.app.sources.undistort import Undistorter
from stream_recon.configs.errors import InputError
from tests.app.fake_engine import fake_result, prepared, run_info
from tests.app.sources.exif_files import jpeg, tiff
from tests.app.sources.film_files import trimmed, turning, with_wide_pixels

SIZE = (96, 72)


def lens(folder: Path, source: Path, draw: random.Random) -> None:
    """A calibration of any number of coefficients projects as OpenCV does, or is refused."""
    count = draw.choice([4, 5, 8, 12, 14, 3, 6, 9])
    coefficients = [round(draw.uniform(-0.05, 0.05), 4) for _ in range(min(count, 8))] + [0.001] * max(0, count - 8)
    K = [draw.uniform(200, 400), 0.0, 191.5, 0.0, draw.uniform(200, 400), 143.5, 0.0, 0.0, 1.0]
    text = f"image_width: 384\nimage_height: 288\ncamera_matrix:\n  rows: 3\n  cols: 3\n  data: {K}\n"
    text += f"distortion_coefficients:\n  rows: 1\n  cols: {count}\n  data: {coefficients}\n"
    (folder / "camera.yml").write_text(text)
    found = Undistorter(parse_camera(str(folder / "camera.yml")).for_size((384, 288)), (384, 288))
    rays = np.array([[draw.uniform(-0.5, 0.5), draw.uniform(-0.4, 0.4)] for _ in range(5)])
    points = np.concatenate([rays, np.ones((5, 1))], axis=1)
    pixels, _ = cv2.projectPoints(points, np.zeros(3), np.zeros(3), np.reshape(K, (3, 3)), np.array(coefficients))
    assert np.abs(found.to_source(rays) - pixels.reshape(-1, 2) - 0.5).max() < 0.1, "a coefficient was dropped"


def units(folder: Path, source: Path, draw: random.Random) -> None:
    """A table of positions in any units and signs gives metres and seconds, or is refused."""
    time, per_second = draw.choice([("s", 1.0), ("millisecond", 1e3), ("us", 1e6), ("ns", 1e9), ("jiffies", 7.0)])
    rows = [[draw.uniform(-50, 50) for _ in range(3)] for _ in range(8)]
    lengths = [draw.choice([("m", 1.0), ("ft", 1 / 0.3048), ("km", 1e-3), ("cm", 100.0)]) for _ in range(3)]
    form = draw.choice(["{0}({1})", "{0} [{1}]", "{0} ({1})"])
    cells = [[form.format("time", time), *(form.format(a, u) for a, (u, _) in zip("xyz", lengths, strict=True))]]
    for number, row in enumerate(rows):
        values = [0.2 * number * per_second, *(v * size for v, (_, size) in zip(row, lengths, strict=True))]
        cells.append([f"{value:.7f}" for value in values])
    delimiter, comma = draw.choice([(",", False), (";", False), (";", True), ("\t", False), ("\t", True), (",", True)])
    text = "\n".join(delimiter.join(line) for line in cells)
    text = text.replace(".", ",") if comma else text
    (folder / "track.csv").write_text(text, encoding=draw.choice(["utf-8", "utf-8-sig", "utf-16"]))
    given, _ = parse_scale_source(f"track:{folder / 'track.csv'}")
    positions = given.positions  # type: ignore[union-attr]
    assert np.abs(positions.metres - np.array(rows)).max() < 1e-3, "a unit of length was dropped"
    assert positions.times is not None and np.abs(positions.times - 0.2 * np.arange(8)).max() < 1e-5, "a unit of time"


def clip(folder: Path, source: Path, draw: random.Random) -> None:
    """A clip of a ride is found at its second, or its second is asked for."""
    random_ = np.random.default_rng(draw.randrange(1 << 30))
    seconds, length = draw.choice([400, 1200, 3600]), draw.choice([40, 60, 100])
    heading = np.cumsum(random_.normal(0, draw.choice([0.0, 0.03, 0.12, 0.3]), seconds))
    speed = 6 + draw.choice([0.0, 1.5]) * np.sin(np.arange(seconds) / 40)
    ride = np.cumsum(np.stack([np.cos(heading) * speed, np.sin(heading) * speed, np.zeros(seconds)], axis=1), axis=0)
    begin, unit = draw.randrange(seconds - length), draw.uniform(0.5, 20)
    noise = draw.choice([0.05, 0.5, 3.0])
    clock = draw.choice([1.7e9, 0.0])
    times = np.asarray(clock + np.arange(seconds), np.float64)
    track = Positions(ride + random_.normal(0, noise, ride.shape), OF_FILE, times)
    cameras = []
    for second in range(length):
        T = np.eye(4)
        T[:3, 3] = (ride[begin + second] - ride[begin]) / unit
        cameras.append(_camera(second, T))
    found = scale_by_track(cameras, np.array([0.0, 0, 1]), GpsTrack(track), "track")
    # The distance within a clip may be as short as some times the noise.
    allowed = max(0.01, 4 * (found.error or 0.0))
    assert abs(found.T_metric_own.scale / unit - 1) < allowed, f"{found.T_metric_own.scale} is not {unit}: {found.how}"


def _camera(index: int, T: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]") -> FrameCamera:
    from dataclasses import replace

    from tests.app.boxroom import room_result

    result: FrameResult = replace(room_result(0), index=index, timestamp=float(index), T_world_camera=T)
    return FrameCamera.from_result(result)


def turned(folder: Path, source: Path, draw: random.Random) -> None:
    """Poses and camera of stored images meet stored images, whatever their orientation says."""
    scene = folder / "scene"
    (scene / "images").mkdir(parents=True)
    image = np.zeros((SIZE[1], SIZE[0], 3), np.uint8)
    image[: SIZE[1] // 2, : SIZE[0] // 2] = (200, 30, 30)
    orientation = draw.randrange(1, 9)
    for number in range(2):
        jpeg(scene / f"images/{number}.jpg", image, tiff(orientation=orientation))
    if draw.random() < 0.5:
        model = scene / "sparse/0"
        model.mkdir(parents=True)
        (model / "cameras.txt").write_text(f"1 PINHOLE {SIZE[0]} {SIZE[1]} 80 80 48 36\n")
        (model / "images.txt").write_text("".join(f"{n + 1} 1 0 0 0 0 0 {n} 1 {n}.jpg\n\n" for n in range(2)))
    else:
        frames = [{"file_path": f"images/{n}.jpg", "transform_matrix": np.eye(4).tolist()} for n in range(2)]
        table = {"fl_x": 80, "cx": 48, "cy": 36, "w": SIZE[0], "h": SIZE[1], "frames": frames}
        (scene / "transforms.json").write_text(json.dumps(table))
    (found,) = find_scenes(scene)
    with found.open() as opened:
        frame = next(iter(opened))
    assert frame.rgb.shape == image.shape and np.abs(frame.rgb.astype(int) - image).mean() < 8, "the image was turned"


def film(folder: Path, source: Path, draw: random.Random) -> None:
    """Edit lists, wide pixels and changes of size are applied or told."""
    match draw.randrange(3):
        case 0:
            begin, shown = draw.randrange(20), draw.randrange(1, 10)
            path = trimmed(folder / "a.mp4", begin / 10, shown / 10, frames=30, fps=10.0)
            with open_source(str(path)) as opened:
                assert len(list(opened)) == shown and not opened.damaged and not opened.warnings, "an edit list"
        case 1:
            over, under = draw.randrange(1, 9), draw.randrange(1, 9)
            path = with_wide_pixels(folder / "a.mp4", over, under, frames=2, size=SIZE)
            with open_source(str(path)) as opened:
                height, width = next(iter(opened)).rgb.shape[:2]
            aspect = over / under if 0.25 <= over / under <= 4 else 1.0
            assert abs(width / height / (SIZE[0] / SIZE[1] * aspect) - 1) < 0.02, "pixels are not square"
        case _:
            first, then = ((draw.randrange(32, 120), draw.randrange(32, 120)) for _ in range(2))
            path = turning(folder / "a.mjpeg", first, then, each=4)
            try:
                with open_source(str(path)) as opened:
                    sizes = {frame.rgb.shape for frame in opened}
            except InputError as error:
                assert "changes from" in str(error)
            else:
                assert first == then or len(sizes) > 1, "a change of size was not told"


def other_source(folder: Path, source: Path, draw: random.Random) -> None:
    """A changed source is noticed, and the same one is taken."""
    images = folder / "images"
    images.mkdir()
    wide = cv2.GaussianBlur(
        np.random.default_rng(draw.randrange(99)).integers(0, 255, (100, 300, 3)).astype(np.float32), (0, 0), 3.0
    )
    wide = cv2.normalize(wide.astype(np.float32), None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)
    pictures = [wide[10:82, 3 * n : 3 * n + 96] for n in range(14)]
    for number, picture in enumerate(pictures):
        cv2.imwrite(str(images / f"{number:02d}.png"), picture)
    opened = partial(open_source, str(images))
    writer = ResultWriter(folder / "out", run_info())
    with opened() as frames:
        cameras = []
        for frame in frames:
            result = fake_result(prepared(frame))
            writer.add(result)
            cameras.append(FrameCamera.from_result(result))
    writer.finish(RunSummary(interrupted=False))
    change: dict[str, Callable[[], object]] = {
        "none": lambda: None,
        "quality": lambda: [cv2.imwrite(str(p), cv2.GaussianBlur(_image(p), (3, 3), 0.5)) for p in _files(images)],
        "mirror": lambda: [cv2.imwrite(str(p), _image(p)[:, ::-1]) for p in _files(images)],
        "removed": lambda: (images / f"{draw.randrange(3):02d}.png").unlink(),
        "reversed": lambda: [
            cv2.imwrite(str(p), picture) for p, picture in zip(_files(images), reversed(pictures), strict=True)
        ],
        "later": lambda: [cv2.imwrite(str(p), 255 - _image(p)) for p in _files(images)[4:]],
    }
    name = draw.choice(list(change))
    change[name]()
    change_of_source = source_change(folder / "out", cameras, opened)
    assert (change_of_source is None) == (name in ("none", "quality")), f"{name}: {change_of_source}"


def _image(path: Path) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint8]]":
    return np.asarray(cv2.imread(str(path)), np.uint8)


def _files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def special(folder: Path, source: Path, draw: random.Random) -> None:
    """Pipes, devices, folders and sparse files in the place of any file are refused at once."""
    name = draw.choice(
        ["a.yml", "a.csv", "a.gpx", "cameras.txt", "groundtruth.txt", "transforms.json", "a.bag", "a.mp4"]
    )
    path = folder / name
    match draw.randrange(4):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to(draw.choice(["/dev/zero", "/dev/random", "/dev/full", "nowhere"]))
        case 2:
            path.mkdir()
        case _:
            with path.open("wb") as file:
                file.truncate(50 << 30)
    readers: list[Callable[[], object]] = [
        lambda: parse_camera(str(path)),
        lambda: parse_scale_source(f"track:{path}"),
        lambda: list(open_source(str(path))),
        lambda: [scene.open() for scene in find_scenes(folder)],
    ]
    draw.choice(readers)()


def manifest(folder: Path, source: Path, draw: random.Random) -> None:
    """A damaged manifest makes a scene be done anew, and ends nothing."""
    result = {"frames": 3, "keyframes": 1, "damaged": 0, "seconds": 1.0, "device": "cpu", "warnings": ["a"]}
    result |= {"metric": True, "figures": {"ate_m": 0.1, "absrel": None}, "phases": {"frames": 1.0}}
    text = json.dumps({"key": {"preset": None}, "result": result, "files": {"a": [3, "x"]}}, indent=1)
    checked = check_files(broken_text(text, draw), {"preset": None}, {"a": 3}, lambda name: "x")
    if checked.result is not None:
        assert type(checked.result["frames"]) is int and checked.result["frames"] >= 0


MEANINGS: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "lens": lens,
    "units": units,
    "clip": clip,
    "turned": turned,
    "film": film,
    "other_source": other_source,
    "special": special,
    "manifest": manifest,
}
