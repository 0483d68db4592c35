"""Cases of known cameras, GPS tracks, EXIF data and ROS recordings."""

import random
import shutil
from pathlib import Path

import cv2
import numpy as np

from fuzzing.mutate import WORDS, broken_bytes, broken_text
from stream_recon.app.metric_scale.scale_source import GpsTrack, parse_scale_source
from stream_recon.app.sources.calibration import parse_camera
from stream_recon.app.sources.exif import VIDEO_FOCAL, camera_of_video, read_exif
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.app.sources.undistort import Undistorter
from tests.app.media import numbered_image
from tests.app.sources import exif_files
from tests.app.sources.bags import Bag
from tests.app.sources.test_camera_writers import SIZE as CAMERA_SIZE
from tests.app.sources.test_camera_writers import WRITERS, written

SIZE = 64, 48
NUMBERS = "50,51,32,24,-0.2,0.05,0.001,-0.002"
POINTS = "\n".join(
    f'<trkpt lat="{48 + n * 1e-5}" lon="{11 + n * 2e-5}"><ele>{500 + n}</ele>'
    f"<time>2026-05-01T10:00:{n:02}Z</time></trkpt>"
    for n in range(12)
)
TRACKS = {
    "walk.gpx": '<?xml version="1.0"?>\n<gpx xmlns="http://www.topografix.com/GPX/1/1"><trk><trkseg>\n'
    f"{POINTS}\n</trkseg></trk></gpx>\n",
    "walk.csv": "time,lat,lon,alt\n" + "".join(f"{n},{48 + n * 1e-5},{11 + n * 2e-5},{500 + n}\n" for n in range(12)),
    "feet.csv": "datetime(utc),lat(deg),lon(deg),alt(ft)\n"
    + "".join(f"2026-05-0{n + 1} 10:00:00,{47 + n * 1e-5},{8 + n * 1e-5},{400 + n}\n" for n in range(8)),
    "frames.csv": "frame,x,y,z\n" + "".join(f"{n},{n * 0.5},{n * 0.1},0\n" for n in range(12)),
    "walk.txt": "# time x y z qx qy qz qw\n" + "".join(f"{n / 10} {n} {n / 2} 0 0 0 0 1\n" for n in range(12)),
}


def write_given(folder: Path) -> None:
    """Write undamaged examples, one folder per kind."""
    (folder / "tracks").mkdir(parents=True)
    for name, text in TRACKS.items():
        (folder / "tracks" / name).write_text(text)
    exif_folder, bags = folder / "exif", folder / "recordings"
    exif_folder.mkdir()
    bags.mkdir()
    picture = numbered_image(3)
    for name, order in (("a.jpg", "<"), ("b.jpg", ">")):
        exif_files.jpeg(exif_folder / name, picture, exif_files.tiff(28, (48.1, -11.5, 520.0), 4.2, 300.0, order=order))
    (exif_folder / "c.tif").write_bytes(exif_files.tiff(28, (48.1, 11.5, -3.0)))
    for name, iso in (("a.mov", False), ("b.mp4", True)):
        exif_files.video(exif_folder / name, VIDEO_FOCAL, b"\x00\x00\x00\x1a", 67, iso=iso)
    for name, mcap in (("a.bag", False), ("sql", False), ("mcap", True)):
        with Bag(bags / name, mcap=mcap) as bag:
            bag.camera("/camera/camera_info", SIZE, [50.0, 0, 32, 0, 50, 24, 0, 0, 1], [-0.1, 0.01, 0, 0, 0])
            for number in range(4):
                bag.raw("/camera/image_raw", number, numbered_image(number), "rgb8")
                bag.jpeg("/camera/image_raw/compressed", number, numbered_image(number))


def camera(folder: Path, source: Path, draw: random.Random) -> None:
    """``--intrinsics``."""
    kind, tree, *_ = draw.choice([*WRITERS.values()])
    if draw.random() < 0.15:
        numbers = NUMBERS.split(",")
        numbers[draw.randrange(len(numbers))] = draw.choice(WORDS)
        text = ",".join(numbers)
    else:
        text = str(folder / f"a.{kind}")
        Path(text).write_bytes(broken_text(written(kind, tree), draw))
    calibration = parse_camera(text)
    assert parse_camera(calibration.text()) == calibration
    undistorter = Undistorter(calibration.for_size(CAMERA_SIZE), CAMERA_SIZE)
    image = undistorter(np.zeros((*CAMERA_SIZE[::-1], 3), np.uint8))
    k = undistorter.intrinsics
    assert image.shape[:2] == CAMERA_SIZE[::-1] and np.isfinite([k.fx, k.fy, k.cx, k.cy]).all() and k.fx > 0


def track(folder: Path, source: Path, draw: random.Random) -> None:
    """``--scale-from track:FILE``."""
    chosen = draw.choice(sorted((source / "given" / "tracks").iterdir()))
    (folder / chosen.name).write_bytes(broken_text(chosen.read_text(), draw))
    gps_track, _ = parse_scale_source(f"track:{folder / chosen.name}{draw.choice(['', '', '@3', '@-1e999', '@x'])}")
    assert isinstance(gps_track, GpsTrack)
    metres, times = gps_track.positions.metres, gps_track.positions.times
    assert metres.ndim == 2 and metres.shape[1] == 3 and np.isfinite(metres).all()
    assert times is None or (np.isfinite(times).all() and (np.diff(times) > 0).all())


def exif(folder: Path, source: Path, draw: random.Random) -> None:
    """``--intrinsics exif`` and ``--scale-from exif``."""
    files = sorted((source / "given" / "exif").iterdir())
    chosen, other = draw.choice(files), draw.choice(files)
    path = folder / chosen.name
    path.write_bytes(broken_bytes(chosen.read_bytes(), draw, other.read_bytes()))
    if path.suffix in (".mov", ".mp4"):
        camera_of_video(path, SIZE)
        return
    tags = read_exif(path)
    if tags.position is not None:
        assert abs(tags.position[0]) <= 90 and abs(tags.position[1]) <= 180
    for focal in (tags.focal_35mm, tags.focal_widths):
        assert focal is None or 0 < focal < 1e9


def recording(folder: Path, source: Path, draw: random.Random) -> None:
    """Bags of ROS 1 and 2."""
    files = [p for p in sorted((source / "given" / "recordings").rglob("*")) if p.is_file()]
    chosen, other = draw.choice(files), draw.choice(files)
    bag = folder / chosen.name
    if chosen.suffix != ".bag" and draw.random() < 0.7:
        # Within its folder, which says what is in it.
        bag = folder / "bag"
        shutil.copytree(chosen.parent, bag)
    broken = bag / chosen.name if bag.is_dir() else bag
    broken.write_bytes(broken_bytes(chosen.read_bytes(), draw, other.read_bytes()))
    topic = draw.choice([None, "/camera/image_raw", "/camera/image_raw/compressed"])
    with open_source(str(bag), FrameChoice(topic=topic, max_frames=8)) as opened:
        for frame in opened:
            assert frame.rgb.dtype == np.uint8 and cv2.cvtColor(frame.rgb, cv2.COLOR_RGB2GRAY).size
