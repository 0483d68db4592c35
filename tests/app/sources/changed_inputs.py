"""Cases of sources, changed in one place or written in another way: each is read rightly, or the change is named."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml

from stream_recon.app.datasets.rigs import load_euroc
from stream_recon.app.datasets.trajectories import COLUMNS, read_trajectory
from stream_recon.app.sources.exif import read_exif
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.images import open_images
from stream_recon.app.sources.panorama import kind_by_file
from stream_recon.app.sources.ros_images import ENCODINGS
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import StreamReconError
from tests.app.datasets import test_changed_files as layouts
from tests.app.datasets.folders import write_lines
from tests.app.datasets.test_rigs import NANOSECONDS, write_euroc
from tests.app.datasets.test_trajectories import NAMES, assert_read, cells
from tests.app.metric_scale import test_track_files as tracks
from tests.app.sources import test_camera_writers as writers
from tests.app.sources import test_changed_folders as folders
from tests.app.sources import test_changed_recordings as recordings
from tests.app.sources import test_exif as tags
from tests.app.sources import test_film_files as films
from tests.app.sources import test_rig_files as rigs
from tests.app.sources.bags import Bag
from tests.app.sources.exif_files import jpeg, structure
from tests.app.sources.film_files import matroska
from tests.app.sources.test_rosbag import WIDTH, picture, stored
from tests.mutations import Mutant, of_table, of_tree, silently_other


def check(
    read: Callable[[Any], tuple[Any, Sequence[str]]], whole: Any, mutants: Sequence[Mutant[Any]], draw: random.Random
) -> None:
    """Read one of the mutants of a whole input."""
    expected, _ = read(whole)
    wrong = silently_other(read, [draw.choice(mutants)], expected, StreamReconError)
    assert not wrong, wrong


def writer(folder: Path, source: Path, draw: random.Random) -> None:
    """A camera file of each program that writes them."""
    name = draw.choice(list(writers.WRITERS))
    kind, tree, *_ = writers.WRITERS[name]
    check(lambda text: writers.read(folder, kind, text), writers.written(kind, tree), writers.mutants_of(name), draw)


def container(folder: Path, source: Path, draw: random.Random) -> None:
    """Boxes of MP4 and elements of Matroska."""
    if draw.random() < 0.5:
        whole = films.upright_cut(folder / "a.mp4")
        check(lambda data: films.film_read(folder / "b.mp4", data), whole, films.film_mutants(whole), draw)
    else:
        tree = films.motion_jpeg(folder / "a.mkv")
        read = films.film_read
        check(lambda changed: read(folder / "b.mkv", matroska(changed)), tree, films.matroska_mutants(tree), draw)


def tag(folder: Path, source: Path, draw: random.Random) -> None:
    """EXIF of a photograph."""

    def read(content: Any) -> tuple[Any, list[str]]:
        path = folder / f"{len(list(folder.iterdir()))}.jpg"
        found = read_exif(jpeg(path, tags.RGB[:30, :40], structure(*content)))
        values = found.focal_35mm, found.focal_widths, found.taken, found.ahead_s, found.position, found.orientation
        return values, [*found.notes, *found.focal_notes, *found.place_notes]

    check(read, tags.full(), list(tags.mutants(("GPSLatitude", "GPSLongitudeRef"))), draw)


def clock(folder: Path, source: Path, draw: random.Random) -> None:
    """Stamps of images in any unit, with and without its name."""
    unit, ratio = draw.choice([("ns", 1), ("us", 10**3), ("ms", 10**6), ("jiffies", 10**6)])
    is_named = draw.random() < 0.7
    table = write_euroc(folder / "a") / "mav0/cam0/data.csv"
    lines = [f"{stamp // ratio},{stamp}.png" for stamp in NANOSECONDS]
    write_lines(table, *([f"#timestamp [{unit}],filename"] if is_named else []), *lines)
    found = load_euroc(folder / "a")
    assert found.timestamps is not None
    is_right = np.allclose(np.diff(found.timestamps), 0.05, atol=1e-3) and len(found.poses) == len(NANOSECONDS)
    assert is_right or any(table.name in line for line in found.warnings), (found.timestamps, found.warnings)


def truth(folder: Path, source: Path, draw: random.Random) -> None:
    """A table of true poses, with its columns in any order, of any unit, or changed."""
    # A second column of times that differ is refused.
    order = tuple(draw.sample([*COLUMNS, "vx", draw.choice(["error", "stamp"])], 10)[: draw.choice([10, 10, 9])])
    unit, scale, metres = draw.choice([("s", 1.0, 1.0), ("ms", 1e3, 1e2), ("us", 1e6, 1e3), ("ns", 1e9, 1.0)])
    units = {"t": unit, **dict.fromkeys("xyz", {1.0: "m", 1e2: "cm", 1e3: "mm"}[metres])}
    header = [f"{NAMES.get(name, name)} [{units[name]}]" if name in units else NAMES.get(name, name) for name in order]
    rows = cells(order, scale, metres)
    if draw.random() < 0.5 or not set(COLUMNS) <= set(order):
        assert_read(read_trajectory(write_lines(folder / "a.csv", ",".join(header), *map(",".join, rows))))
        return

    def read(table: list[list[str]]) -> tuple[Any, list[str]]:
        found = read_trajectory(write_lines(folder / "a.csv", *map(",".join, table)))
        return [[time, *pose.ravel()] for time, pose in zip(found.times, found.poses, strict=True)], []

    # A column that is missing is named by what it is.
    meaning = {said: f" {name}" for said, name in zip(header, order, strict=True)}
    mutants = [replace(m, names=(*m.names, *map(meaning.get, m.names[-1:]))) for m in of_table(header, rows)]
    check(read, [header, *rows], mutants, draw)


def message(folder: Path, source: Path, draw: random.Random) -> None:
    """A raw or compressed image in a recording: right, or refused by what is odd of it."""
    name = draw.choice([name for name in ENCODINGS if name.endswith(("8", "16")) and not name.startswith("bayer")])
    said, image = draw.choice([name, name, draw.choice(list(ENCODINGS)), "zzz8"]), stored(picture(2), name)
    is_deep, pad = name.endswith("16"), draw.choice([0, 4, 4000])
    with Bag(folder / draw.choice(["a", "a.bag"])) as bag:
        bag.raw("/image", 0, image.astype(np.uint16) * 256 if is_deep else image, said, pad)
    has, needs = (
        WIDTH * channels * bits // 8 for channels, bits, _ in (ENCODINGS[name], ENCODINGS.get(said, (0, 0, 0)))
    )
    with open_source(str(next(folder.iterdir()))) as opened:
        (frame,) = opened
    assert 0 < needs <= has + pad < 2 * needs, f"{name} was read as {said}"
    want = np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else picture(2)
    assert name != said or np.abs(frame.rgb.astype(int) - want).mean() < 4, f"{name} has other colours"


def order(folder: Path, source: Path, draw: random.Random) -> None:
    """Images of a folder in the order of the numbers in their names, however these are written."""
    form = draw.choice(
        ["{:d}.png", "{:03d}.png", "IMG_{:d}.png", "a ({:d}).png", "{:.2f}.png", "x-{:d}_a.png", "{:d}.PNG"]
    )
    numbers = sorted(draw.sample(range(300), draw.randrange(2, 15)))
    names = [form.format(number / 4 if "f" in form else number) for number in numbers]
    for number, name in draw.sample(list(zip(numbers, names, strict=True)), len(names)):
        cv2.imwrite(str(folder / name), np.full((8, 8, 3), number % 256, np.uint8))
    with open_source(str(folder)) as opened:
        assert [frame.rgb[0, 0, 0] for frame in opened] == [number % 256 for number in numbers]


def door(folder: Path, source: Path, draw: random.Random) -> None:
    """Images and times that a program gives."""
    image = np.zeros((4, 6, 3), np.uint8)
    odd = (image[..., 0], image.astype(float), image[:0], None, "a", (1.0, None), (float("nan"), image), (-1, image))
    odd += ((True, image), ("1", image), (10**400, image), (0.5,), (0.5, image, 1), np.bool_(True))
    given: list[Any] = [(0.1 * number, image + np.uint8(number)) for number in range(6)]
    if draw.random() < 0.5:
        given[draw.randrange(6)] = draw.choice(odd)
    if draw.random() < 0.5:
        draw.shuffle(given)
    with open_images(iter(given), FrameChoice()) as opened:
        found = list(opened)
    times = [frame.timestamp for frame in found]
    assert times == [item[0] for item in given] and (np.diff(times) > 0).all(), times
    assert all(np.array_equal(frame.rgb, item[1]) for frame, item in zip(found, given, strict=True))


def layout(folder: Path, source: Path, draw: random.Random) -> None:
    """A file of a data set, read with its images or as known poses."""
    is_known = draw.random() < 0.3
    given, write, name, mutants = draw.choice(layouts.KNOWN if is_known else layouts.CASES)
    scene = write(folder / "scene")
    file = scene / name
    whole = file.read_text()

    def read(text: str) -> tuple[Any, Sequence[str]]:
        file.write_text(text)
        return layouts.read_poses(scene / given) if is_known else layouts.read(given, scene)

    named = [m if mutants is layouts.tree else replace(m, names=(*m.names, file.name)) for m in mutants(whole)]
    check(read, whole, named, draw)


def rig(folder: Path, source: Path, draw: random.Random) -> None:
    """A rig of Kalibr or COLMAP."""
    content: Any = draw.choice([rigs.colmap(), yaml.safe_load(rigs.KALIBR)])
    mutants = [replace(m, names=(*m.names, "two or more")) for m in of_tree(content, lists=False)]
    check(lambda changed: rigs.read(folder, changed), content, mutants, draw)


def mark(folder: Path, source: Path, draw: random.Random) -> None:
    """Google's mark of a photograph of 360 degrees: it is never taken for an ordinary picture."""
    words = {"ProjectionType": "equirectangular", "UsePanoramaViewer": "True"}
    words |= {
        f"{which}{axis}Pixels": "64" for which in ("FullPano", "CroppedAreaImage") for axis in ("Width", "Height")
    }
    prefix, sign = draw.choice(["GPano", "pano"]), draw.choice("'\"")
    (changed,) = draw.choices(list(of_tree(words)))
    items = draw.sample([*changed.content.items()], len(changed.content))
    xml = " ".join(f"{prefix}:{name}={sign}{value}{sign}" for name, value in items)
    space = f"xmlns:{prefix}={sign}http://ns.google.com/photos/1.0/panorama/{sign}"
    (folder / "a.jpg").write_bytes(b"\xff\xd8" + f"<x {space} {xml}/>".encode())
    assert kind_by_file(folder / "a.jpg"), xml


def listing(folder: Path, source: Path, draw: random.Random) -> None:
    """A folder of photographs, or masks of them, with one file changed."""
    is_masks = draw.random() < 0.5
    whole = {f"{number:04d}.png": (folders.mask if is_masks else folders.picture)(number) for number in range(5)}
    images = folders.write(folder / "images", {name: folders.picture(n) for n, name in enumerate(whole)})

    def read(files: Any) -> tuple[Any, Sequence[str]]:
        changed = folders.write(folder / "changed", files)
        choice = FrameChoice(masks=str(changed)) if is_masks else FrameChoice()
        with open_source(str(images if is_masks else changed), choice) as opened:
            values = [frame.mask if is_masks else frame.rgb // 128 for frame in opened]
            return [None if value is None else int(value.sum()) // 999 for value in values], opened.warnings

    check(read, whole, list(folders.changed_files(whole, ("mask",))), draw)


def sentence(folder: Path, source: Path, draw: random.Random) -> None:
    """NMEA of a receiver, with one word changed."""
    kind, at = draw.choice([("GGA", draw.randrange(15)), ("RMC", draw.randrange(13))])
    change = draw.choice(["emptied", "removed", "added before", "renamed", "lower case", "doubled"])
    expected, _ = tracks.read_track(folder / "a.nmea", tracks.sentences())
    mutant = Mutant(change, (kind, "lines", "height"), tracks.sentences(change, kind, at))
    wrong = silently_other(lambda text: tracks.read_track(folder / "a.nmea", text), [mutant], expected, ValueError)
    assert not wrong, wrong


def record(folder: Path, source: Path, draw: random.Random) -> None:
    """Records of a bag of ROS 1, of which one is renamed, removed, doubled or moved."""
    path = recordings.write(folder / "a.bag")
    content = list(recordings.records(path.read_bytes(), 13))

    def read(changed: Any) -> tuple[Any, Sequence[str]]:
        path.write_bytes(recordings.bag_of(changed))
        return recordings.read(path)

    mutants = [replace(m, names=(*m.names, path.name, "/cam")) for m in recordings.changed_records(content)]
    check(read, content, mutants, draw)


SOURCES: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "writer": writer,
    "container": container,
    "tag": tag,
    "clock": clock,
    "truth": truth,
    "message": message,
    "order": order,
    "door": door,
    "layout": layout,
    "rig": rig,
    "mark": mark,
    "listing": listing,
    "sentence": sentence,
    "record": record,
}
