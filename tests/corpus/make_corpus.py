#!/usr/bin/env python3
"""Write the corpus of tests/corpus from the packaged sample: small files of which each has a known right answer.

tests/corpus/make_corpus.py                 # replaces tests/corpus/files and tests/corpus/expected.json
tests/corpus/make_corpus.py --to FOLDER

Films with properties that OpenCV cannot write are encoded by ffmpeg; without it the ones that are there stay.

expected.json has a list of cases: `kind`, the reader that is tried; `file`; and what has to come out.
"""

import argparse
import dataclasses
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image, ImageOps

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from stream_recon.app.sources.source import open_source  # noqa: E402
from tests.app.sources.bags import Bag  # noqa: E402
from tests.app.sources.exif_files import jpeg, tiff  # noqa: E402
from tests.app.sources.film_files import spherical, trimmed, turning, with_wide_pixels  # noqa: E402

CORPUS = Path(__file__).parent
SIZE = (96, 72)
FRAMES = 24
RATIONAL = (6.2, 3.1, 0.0003, -0.0002, 0.35, 6.4, 4.9, 1.2)
PLACE = 47.3, 8.5
METRES_A_DEGREE = 111_180.0, 111_320.0 * float(np.cos(np.radians(PLACE[0])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=CORPUS)
    target = parser.parse_args().to
    files = target / "files"
    encoded = encoded_films(files)
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir(parents=True)
    images = sample_images()
    for name, data in encoded.items():
        (files / name).write_bytes(data)
    cases = [*cameras(files), *recordings(files, images), *films(files), *folders(files, images), *tracks(files)]
    cases += [*encoded_cases(), *pictures(files, images), *listed(files, images), *addresses()]
    cases += [*several(files, images), *calibrated(files, images)]
    (target / "expected.json").write_text(json.dumps(cases, indent=1) + "\n")
    size = sum(path.stat().st_size for path in files.rglob("*") if path.is_file())
    print(f"{len(cases)} cases, {size / 1e6:.2f} MB in {files}")
    return 0


def sample_images() -> list[NDArray[np.uint8]]:
    with open_source(str(ROOT / "app" / "sample" / "walkthrough.mp4")) as source:
        frames = [frame.rgb for frame, _ in zip(source, range(FRAMES), strict=False)]
    return [np.asarray(cv2.resize(rgb, SIZE, interpolation=cv2.INTER_AREA), np.uint8) for rgb in frames]


def case(kind: str, file: str, why: str, **expected: Any) -> dict[str, Any]:
    return {"kind": kind, "file": file, "why": why, **expected}


def projected(coefficients: tuple[float, ...]) -> list[list[float]]:
    """Rays and their pixels, with pixel (0, 0) covering [0, 1), by OpenCV."""
    rays = np.stack(np.meshgrid([-0.5, 0.0, 0.4], [-0.3, 0.2]), axis=-1).reshape(-1, 2)
    points = np.concatenate([rays, np.ones((len(rays), 1))], axis=1)
    K = np.array([[300.0, 0, 191.5], [0, 300, 143.5], [0, 0, 1]])
    pixels, _ = cv2.projectPoints(points, np.zeros(3), np.zeros(3), K, np.array(coefficients))
    return [[*ray, *pixel] for ray, pixel in zip(rays.tolist(), (pixels.reshape(-1, 2) + 0.5).tolist(), strict=True)]


def cameras(files: Path) -> list[dict[str, Any]]:
    head = "image_width: 384\nimage_height: 288\ncamera_matrix:\n  rows: 3\n  cols: 3\n"
    head += "  data: [300, 0, 191.5, 0, 300, 143.5, 0, 0, 1]\n"
    made = []
    for name, coefficients in (
        ("five", (-0.2, 0.05, 0.001, -0.002, 0.01)),
        ("rational", RATIONAL),
        ("prism", (-0.2, 0.05, 0.001, -0.002, 0.01, 0.02, 0.01, 0.0, 0.001, -0.0005, 0.002, 0.0003)),
    ):
        text = f"{head}distortion_coefficients:\n  rows: 1\n  cols: {len(coefficients)}\n  data: {list(coefficients)}\n"
        (files / f"{name}.yml").write_text(text)
        made.append(case("camera", f"{name}.yml", "every coefficient is applied", pixels=projected(coefficients)))
    (files / "full.txt").write_text("1 FULL_OPENCV 384 288 300 300 192 144 " + " ".join(map(str, RATIONAL)) + "\n")
    made.append(case("camera", "full.txt", "FULL_OPENCV is the rational model", pixels=projected(RATIONAL)))
    refused = {
        "prism.txt": ("1 THIN_PRISM_FISHEYE 384 288 300 300 192 144 0 0 0 0 0 0 0 0\n", "THIN_PRISM_FISHEYE"),
        "k4.json": (json.dumps({"fl_x": 300, "w": 384, "h": 288, "k4": 0.1}), "k4"),
        "skew.yml": (head.replace("300, 0, 191.5", "300, 9, 191.5"), "skew"),
        "outside.txt": ("1 PINHOLE 384 288 300 300 2016 1512\n", "outside"),
        "two.txt": ("1 PINHOLE 384 288 300 300 192 144\n2 PINHOLE 384 288 400 400 192 144\n", "fx 300.*fx 400"),
    }
    for name, (text, named) in refused.items():
        (files / name).write_text(text)
        made.append(case("camera", name, "what cannot be applied is refused by name", refused=named))
    return made


def recordings(files: Path, images: list[NDArray[np.uint8]]) -> list[dict[str, Any]]:
    k = [70.0, 0, 47.5, 0, 70, 35.5, 0, 0, 1]
    p = [66.5, 0, 47.5, 0, 0, 66.5, 35.5, 0, 0, 0, 1, 0]
    with Bag(files / "rectified.bag") as bag:
        bag.camera("/cam/camera_info", SIZE, k, [-0.3, 0.1, 0.0, 0.0, 0.0], p=p)
        for number, rgb in enumerate(images[:4]):
            bag.jpeg("/cam/image_rect_color/compressed", number, rgb)
    with Bag(files / "unstamped.bag", stamped=False) as bag:
        for number, rgb in enumerate(images[:4]):
            bag.jpeg("/cam/image_raw/compressed", number, rgb)
    times = [0.0, 0.05, 0.1, 0.15]
    return [
        case("source", "rectified.bag", "P, without distortion", frames=4, focal=66.5, times=times),
        case("source", "unstamped.bag", "the time of recording", frames=4, times=times, warning="all stamps"),
    ]


def films(files: Path) -> list[dict[str, Any]]:
    trimmed(files / "trimmed.mp4", 1.0, 2.0, frames=40, fps=10.0)
    with_wide_pixels(files / "wide.mp4", 4, 3, frames=4, size=(72, 72))
    turning(files / "turn.mjpeg")
    spherical(files / "round.mp4")
    return [
        case("source", "trimmed.mp4", "an edit list hides frames", frames=20, size=[64, 48], damaged=0),
        case("source", "wide.mp4", "pixels are made square", frames=4, size=[96, 72]),
        case("source", "turn.mjpeg", "a change of size is told", refused="96x64 to 64x96 at"),
        case("source", "round.mp4", "a panorama by its mark, but not by its shape", refused="not 2:1"),
    ]


HEVC_10 = "-pix_fmt yuv420p10le -c:v libx265 -x265-params log-level=none:transfer={0} -color_trc {0}"
INTERLACE = "tinterlace=interleave_top,setfield=tff"
ENCODED = {
    "interlaced.mp4": f"-vf scale=96:72,{INTERLACE} -c:v libx264 -flags +ilme+ildct",
    "interlaced.mpg": f"-vf scale=96:72,{INTERLACE} -r 25 -c:v mpeg2video -flags +ilme+ildct",
    "interlaced.mkv": f"-vf scale=96:72,{INTERLACE} -c:v mpeg4 -flags +ilme+ildct",
    "combs.avi": f"-vf fps=5,scale=96:72,{INTERLACE},setfield=prog -c:v mjpeg -q:v 3",
    "hlg.mp4": "-vf scale=96:72 " + HEVC_10.format("arib-std-b67") + " -tag:v hvc1",
    "pq.ts": "-vf scale=96:72 " + HEVC_10.format("smpte2084"),
    "hlg.h264": "-vf scale=96:72 -c:v libx264 -x264-params transfer=arib-std-b67 -color_trc arib-std-b67",
    "av1.mp4": "-vf scale=96:72 -c:v libsvtav1",
    "two.mkv": "-filter_complex [0]split[a][b];[a]scale=48:36[c];[b]scale=96:72[d] -map [c] -map [d] -c:v libx264",
    "varying.mp4": "-vf select=not(mod(n\\,3))+not(mod(n\\,5)),scale=96:72 -fps_mode vfr -c:v libx264",
    "late.mkv": "-vf scale=96:72 -c:v libx264 -output_ts_offset 5",
    "narrow.mkv": "-vf scale=72:72,setsar=4/3 -c:v libx264",
}
"""Options of ffmpeg by file."""


def encoded_films(folder: Path) -> dict[str, bytes]:
    """Films that ffmpeg (on the path, or in the variable FFMPEG) encodes; else those in ``folder``."""
    program = os.environ.get("FFMPEG") or shutil.which("ffmpeg")
    if program is None:
        return {name: (folder / name).read_bytes() for name in ENCODED}
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, options in ENCODED.items():
            command = [program, "-v", "error", "-i", str(ROOT / "app/sample/walkthrough.mp4"), *options.split()]
            subprocess.run(
                [*command, "-frames:v", "10", "-threads", "1", "-fflags", "+bitexact", f"{place}/{name}"], check=True
            )
            found[name] = (Path(place) / name).read_bytes()
    return found


def encoded_cases() -> list[dict[str, Any]]:
    varying = [0.0, 0.15, 0.25, 0.3, 0.45, 0.5, 0.6, 0.75, 0.9, 1.0]
    told = "is interlaced, which OpenCV cannot decode here|one field of each frame"
    return [
        *(case("film", f"interlaced.{kind}", "no garbage", told=told) for kind in ("mp4", "mpg", "mkv")),
        case("film", "combs.avi", "combs without a word in the file", told="one field of each frame"),
        case("source", "hlg.mp4", "HDR of phones", frames=10, size=[96, 72], transfer=18),
        case("source", "pq.ts", "HDR in the stream alone", frames=10, size=[96, 72], transfer=16),
        case("source", "hlg.h264", "HDR of cameras; no length", frames=10, damaged=0, transfer=18),
        case("film", "av1.mp4", "the codec is named", told="AV01|av01"),
        case("source", "two.mkv", "which track", frames=10, warning="2 video tracks (48x36, 96x72): the first is used"),
        case("source", "varying.mp4", "own times", frames=10, times=varying),
        case("source", "late.mkv", "a film that begins at 5 s", frames=10, hint=10, damaged=0),
        case("source", "narrow.mkv", "pixels are made square", frames=10, size=[96, 72]),
    ]


def pictures(files: Path, images: list[NDArray[np.uint8]]) -> list[dict[str, Any]]:
    """One picture in every form; each shows the same. And a panorama that nothing marks."""
    rgb = images[0]
    picture, grey = Image.fromarray(rgb), Image.fromarray(rgb).convert("L")
    picture.convert("CMYK").save(files / "cmyk.jpg", quality=95)
    picture.quantize(128).save(files / "palette.png")
    picture.save(files / "interlaced.png", interlace=True)
    Image.fromarray(np.dstack([rgb, np.full(rgb.shape[:2], 77, np.uint8)])).save(files / "alpha.png")
    picture.save(files / "moving.webp", save_all=True, append_images=[ImageOps.invert(picture)], lossless=True)
    picture.save(files / "moving.png", save_all=True, append_images=[ImageOps.invert(picture)])
    picture.save(files / "photo.avif", quality=90)
    picture.save(files / "progressive.jpg", quality=95, progressive=True)
    picture.save(files / "deflate.tif", compression="tiff_deflate")
    picture.save(files / "UPPER.JPEG", quality=95)
    cv2.imwrite(str(files / "deep.png"), rgb[..., ::-1].astype(np.uint16) * 257)
    cv2.imwrite(str(files / "float.tif"), rgb[..., ::-1].astype(np.float32) / 255)
    grey.save(files / "grey.png")
    names = ["cmyk.jpg", "palette.png", "interlaced.png", "alpha.png", "moving.webp", "moving.png", "photo.avif"]
    names += ["progressive.jpg", "deflate.tif", "UPPER.JPEG", "deep.png", "float.tif", "grey.png"]
    quarters = [round(float(part.mean()), 1) for part in np.array_split(rgb.mean(axis=2), 4, axis=1)]
    azimuth, height = np.meshgrid(np.linspace(0, 2 * np.pi, 256, endpoint=False), np.linspace(-1, 1, 128))
    waves = [np.sin((n + 1) * azimuth + 3 * n) * np.sqrt(1 - height**2) * np.cos(5 * n * height) for n in range(6)]
    round_ = np.clip(120 + 60 * np.sum(waves, axis=0)[..., None] * [0.5, 0.4, 0.3], 0, 255).astype(np.uint8)
    cv2.imwrite(str(files / "around.jpg"), round_)
    return [
        *(
            case("source", name, "every form of a picture", frames=1, size=[96, 72], quarters=quarters)
            for name in names
        ),
        case("source", "around.jpg", "four views of a panorama without a mark", frames=4),
    ]


def listed(files: Path, images: list[NDArray[np.uint8]]) -> list[dict[str, Any]]:
    """Lists as Windows writes them, times in another unit, and photographs that were turned by a program."""
    for name, stamp, separator in (("lists", 1.0, "\\"), ("stamps", 1e9, "/")):
        write_photographs(files / f"{name}/RGB", images[:3])
        rows = "".join(f"{0.1 * n:.1f} rgb{separator}{n:03d}.JPG\r\n" for n in range(3))
        (files / f"{name}/rgb.txt").write_text("\ufeff" + rows, encoding="utf-8")
        poses = "".join(f"{0.1 * n * stamp:.1f} {n} 0 0 0 0 2 2\n" for n in range(3))
        (files / f"{name}/groundtruth.txt").write_text(poses)
    write_photographs(files / "held", images[:3])
    write_photographs(files / "held/x", [np.ascontiguousarray(np.rot90(images[3]))])
    (files / "held/x/000.jpg").rename(files / "held/003.jpg")
    (files / "held/x").rmdir()
    south = ["time,lat,lat_ref,lon,lon_ref,alt(ft)"]
    south += [f"{n},{33 + n * 1e-4:.4f},S,{70 + n * 1e-4:.4f},W,{100 * n}" for n in range(4)]
    (files / "south.csv").write_text("\n".join(south))
    metres = [[-9.3453 * n, -11.091 * n, 30.48 * n] for n in range(4)]
    return [
        case("scene", "lists", "backslashes, other case, BOM and CRLF", frames=3, size=[96, 72], poses=3),
        case("scene", "stamps", "nanoseconds and seconds", frames=3, warning="have a pose in groundtruth.txt"),
        case(
            "source",
            "held",
            "upright and wide, turned by a program",
            frames=4,
            size=[96, 72],
            warning="1 of 4 are used",
        ),
        case("track", "south.csv", "hemispheres and feet", metres=metres, times=[0.0, 1.0, 2.0, 3.0], within=0.02),
    ]


def write_photographs(folder: Path, images: list[NDArray[np.uint8]], orientation: int = 1) -> None:
    folder.mkdir(parents=True)
    for number, rgb in enumerate(images):
        jpeg(folder / f"{number:03d}.jpg", rgb, tiff(orientation=orientation))


def folders(files: Path, images: list[NDArray[np.uint8]]) -> list[dict[str, Any]]:
    write_photographs(files / "turned/images", images[:3], 6)
    model = files / "turned/sparse/0"
    model.mkdir(parents=True)
    (model / "cameras.txt").write_text("1 PINHOLE 96 72 80 80 48 36\n")
    (model / "images.txt").write_text("".join(f"{n + 1} 1 0 0 0 {-0.1 * n} 0 0 1 {n:03d}.jpg\n\n" for n in range(3)))
    pairs = files / "pairs"
    (pairs / "rgb").mkdir(parents=True)
    (pairs / "depth").mkdir()
    for number, rgb in enumerate(images[:3]):
        cv2.imwrite(str(pairs / f"rgb/{number}.png"), rgb[..., ::-1])
        depth = np.full((SIZE[1], SIZE[0]), 5000 * (number + 1), np.uint16)
        cv2.imwrite(str(pairs / f"depth/{number}.png"), depth)
    lines = [f"{0.1 * n:.1f} rgb/{n}.png {0.1 * n:.1f} depth/{n}.png\n" for n in range(3)]
    (pairs / "associations.txt").write_text("".join(lines))
    write_photographs(files / "windows/images", images[:3])
    frames = [{"file_path": f"images\\{n:03d}.jpg", "transform_matrix": np.eye(4).tolist()} for n in range(3)]
    table = {"fl_x": 80, "cx": 48, "cy": 36, "w": 96, "h": 72, "frames": frames}
    (files / "windows/transforms.json").write_text(json.dumps(table))
    capture = files / "capture"
    write_photographs(capture / "lowres_wide", images[:3])
    for name, image in (("lowres_depth", depth), ("confidence", np.full((SIZE[1], SIZE[0]), 2, np.uint8))):
        (capture / name).mkdir()
        for number in range(3):
            cv2.imwrite(str(capture / f"{name}/{number:03d}.png"), image)
    write_photographs(files / "mixed", images[:3])
    for number in range(18):
        (files / f"mixed/IMG_{number}.DNG").write_bytes(b"raw")
    write_photographs(files / "timed", [])
    for name, rgb in zip(("0.1", "0.05", "0.15"), images[:3], strict=True):
        cv2.imwrite(str(files / f"timed/{name}.png"), rgb[..., ::-1])
    means = [round(float(images[n].mean()), 2) for n in (1, 0, 2)]
    return [
        case("scene", "turned", "poses and camera of stored images", frames=3, size=[96, 72], focal=80.0),
        case("scene", "pairs", "colour comes first", frames=3, size=[96, 72], times=[0.0, 0.1, 0.2]),
        case("scene", "windows", "folders are separated by a backslash", frames=3, size=[96, 72], focal=80.0),
        case("scenes", "capture", "maps are no photographs", names=["lowres_wide"]),
        case("source", "mixed", "what cannot be read is counted", frames=3, warning="18 images"),
        case("source", "timed", "names that are times", frames=3, means=means),
    ]


def tracks(files: Path) -> list[dict[str, Any]]:
    """Five positions in every dialect; and a clip in a long ride."""
    places = np.array([[0.0, 0, 0], [10, 2, 1], [20, 6, 3], [30, 12, 2], [41, 15, 4]])
    times = 0.2 * np.arange(5)
    feet = places / 0.3048
    made = {
        "feet.csv": ["time(millisecond),x(ft),y(ft),z(ft)"]
        + [f"{1000 * t:.0f},{x:.5f},{y:.5f},{z:.5f}" for t, (x, y, z) in zip(times, feet, strict=True)],
        "comma.csv": ["time;x;y;z"]
        + [f"{t:.1f};{x:.1f};{y:.1f};{z:.1f}".replace(".", ",") for t, (x, y, z) in zip(times, places, strict=True)],
        "nano.txt": [
            f"{1_700_000_000_000_000_000 + round(1e9 * t)} {x} {y} {z}"
            for t, (x, y, z) in zip(times, places, strict=True)
        ],
    }
    cases = []
    for name, lines in made.items():
        (files / name).write_text("\n".join(lines) + "\n")
        cases.append(case("track", name, "units and signs are read", metres=places.tolist(), times=times.tolist()))
    (files / "wide.csv").write_text("\n".join(made["feet.csv"]), encoding="utf-16")
    cases.append(case("track", "wide.csv", "UTF-16", metres=places.tolist(), times=times.tolist()))
    for name, head, named in (
        ("fathoms.csv", "time(s),x(fathoms),y(m),z(m)", "x\\(fathoms\\).*first value"),
        ("jiffies.csv", "time(jiffies),x,y,z", "jiffies"),
    ):
        (files / name).write_text("\n".join([head, *made["feet.csv"][1:]]))
        cases.append(case("track", name, "unknown units are refused", refused=named))
    random = np.random.default_rng(3)
    heading = np.cumsum(random.normal(0, 0.12, 3600))
    speed = 6 + 1.5 * np.sin(np.arange(3600) / 40)
    ride = np.cumsum(np.stack([np.cos(heading) * speed, np.sin(heading) * speed, np.zeros(3600)], axis=1), axis=0)
    noisy = ride + random.normal(0, 0.3, ride.shape)
    rows = [f"{1.7e9 + n:.0f},{x:.2f},{y:.2f},{z:.2f}" for n, (x, y, z) in enumerate(noisy)]
    (files / "ride.csv").write_text("\n".join(["time,x,y,z", *rows]) + "\n")
    twice = [f"{1.7e9 + n:.0f},{x:.2f},{y:.2f},{z:.2f}" for n, (x, y, z) in enumerate([*noisy[:600], *noisy[:600]])]
    (files / "twice.csv").write_text("\n".join(["time,x,y,z", *twice]) + "\n")
    clip = [[round(float(value), 3) for value in place] for place in ride[200:301] / 5.0]
    cases.append(case("clip", "ride.csv", "a clip in an hour", path=clip, begins=200.0, scale=5.0))
    cases.append(case("clip", "twice.csv", "a road driven twice", path=clip, refused="fits about as well"))
    return cases


def write_jpeg(path: Path, rgb: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), rgb[..., ::-1])


def several(files: Path, images: list[NDArray[np.uint8]]) -> list[dict[str, Any]]:
    """Two of what there should be one of: cameras in a folder and in a topic, and pages of an image."""
    for side in ("left", "right"):
        for number in range(2):
            write_jpeg(files / "series" / f"{side}_{number:04d}.jpg", images[number])
    (files / "pages").mkdir()
    for number, first in enumerate(images[:2]):
        pages = [Image.fromarray(image) for image in (first, images[3])]
        pages[0].save(files / "pages" / f"{number}.tif", save_all=True, append_images=pages[1:], compression="jpeg")
    with Bag(files / "cameras.bag") as bag:
        for number in range(4):
            header = dataclasses.replace(bag.header(number), frame_id=("left", "right")[number % 2])
            data = cv2.imencode(".jpg", images[number][..., ::-1])[1].ravel()
            kind = "sensor_msgs/msg/CompressedImage"
            bag.write("/image/compressed", kind, number, bag.store.types[kind](header, "jpeg", data))
    return [
        case("source", "series", "two cameras in one folder are told", frames=4, warning="differ by words alone"),
        case("source", "pages", "further pages are told", frames=2, warning="its further pictures (TIFF) are not read"),
        case("source", "cameras.bag", "two cameras in one topic are told", frames=4, warning="of left and right"),
    ]


def calibrated(files: Path, images: list[NDArray[np.uint8]]) -> list[dict[str, Any]]:
    """Cameras of data sets: in a list of YAML's other form, in a model with a file of another one, and in no file."""
    euroc, model, day = files / "block" / "mav0" / "cam0", files / "stale" / "sparse" / "0", files / "drive"
    stamps = [1_400_000_000_000_000_000 + 50_000_000 * number for number in range(2)]
    for number, stamp in enumerate(stamps):
        write_jpeg(euroc / "data" / f"{stamp}.jpg", images[number])
        write_jpeg(files / "stale" / "images" / f"{number}.jpg", images[number])
        write_jpeg(day / "1_sync" / "image_02" / "data" / f"{number:010d}.jpg", images[number])
    (euroc / "data.csv").write_text("#timestamp [ns],filename\n" + "".join(f"{n},{n}.jpg\n" for n in stamps))
    width, height = SIZE
    k = [70.0, 70.0, width / 2 - 0.5, height / 2 - 0.5]
    T_body_camera = {"rows": 4, "cols": 4, "data": np.eye(4).ravel().tolist()}
    table = {"camera_model": "pinhole", "intrinsics": k, "resolution": [width, height], "T_BS": T_body_camera}
    table |= {"distortion_model": "radial-tangential", "distortion_coefficients": [0.0] * 4}
    (euroc / "sensor.yaml").write_text(yaml.safe_dump(table, default_flow_style=False))
    model.mkdir(parents=True)
    (model / "cameras.txt").write_text(f"1 PINHOLE {width} {height} 70 70 {width / 2} {height / 2}\n")
    (model / "images.txt").write_text("".join(f"{n + 1} 1 0 0 0 0 0 {n} 1 {n}.jpg\n\n" for n in range(2)))
    other = struct.pack("<QiiQQ4d", 1, 1, 1, width, height, 90, 90, width / 2, height / 2)
    (model / "cameras.bin").write_bytes(other)
    (day / "1_sync/image_02/timestamps.txt").write_text("2011-09-26 13:02:25.0\n2011-09-26 13:02:25.1\n")
    (day / "calib_cam_to_cam.txt").write_text(f"S_rect_02: {width} {height}\nR_rect_00: 1 0 0 0 1 0 0 0 1\n")
    why = "cameras of data sets are read wholly"
    return [
        case("scene", "block", why, frames=2, focal=70),
        case("scene", "stale", "files of two models are not mixed", frames=2, focal=70),
        case("scene", "drive", why, refused="no line 'P_rect_02:'"),
    ]


def addresses() -> list[dict[str, Any]]:
    shown = {
        "rtsp://me:pw@host/live": "rtsp://host/live",
        "rtsp://host/user=a&password=b&channel=1": "rtsp://host/user=***&password=***&channel=1",
        "http://host/live?token=abc&x=1": "http://host/live?token=***&x=1",
    }
    return [case("address", address, "secrets are blanked", shown=text) for address, text in shown.items()]


if __name__ == "__main__":
    sys.exit(main())
