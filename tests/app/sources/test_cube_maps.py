"""Cube maps give the views that an equirectangular film gives, where their faces join."""

import struct
import subprocess
from pathlib import Path
from shutil import which

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.rig import view_of
from stream_recon.app.sources.cube_maps import EQUI_ANGULAR, SphereLayout, find_layout
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.panorama_views import cut_view, find_carrier, panorama_rig, view_camera
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import InputError
from tests.app.sources.film_files import TO_SAMPLE, box, elements, find_box, insert_box, matroska
from tests.app.sources.test_panorama import SAMPLE, around, faces, grid, seen, view

Picture = NDArray[np.uint8]
LAYOUTS = {
    "3x2": ("rlu/dfb", {}, False),
    "Spherical Video V2": ("rlu/dfb", {"u": 2, "d": 2}, False),
    "YouTube": ("lfr/dbu", {"d": 1, "b": 3, "u": 1}, True),
    "6x1": ("rludfb", {}, False),
    "1x6": ("r/l/u/d/f/b", {}, False),
    "four sides first": ("frblud", {"u": 1}, False),
}
"""Faces by rows, quarter turns counterclockwise of those that are not upright, and whether they are equi-angular."""


def cube_map(name: str, side: int = 192, seed: int = 0) -> Picture:
    """What a camera for all directions sees in the room of `seen`, its front face to z."""
    rows, turns, equal_angles = LAYOUTS[name]
    sides = dict(zip("rludfb", faces(side, seed, equal_angles=equal_angles), strict=True))
    return grid([[np.rot90(sides[face], turns.get(face, 0)) for face in row] for row in rows.split("/")])


def psnr(one: Picture, other: NDArray[np.generic]) -> float:
    return float(10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2)))


def qualities(spec: Path, seed: int = 0) -> list[float]:
    """PSNR in decibels of the four views of the first frame, by what a pinhole camera sees in the room."""
    found = []
    with open_source(str(spec), FrameChoice(max_frames=1)) as source:
        for frame in source:
            rig, k = source.rig, source.intrinsics
            assert rig is not None and k is not None and frame.mask is None
            height, width = frame.rgb.shape[:2]
            x, y = np.meshgrid((np.arange(width) + 0.5 - k.cx) / k.fx, (np.arange(height) + 0.5 - k.cy) / k.fy)
            rays = np.stack([x, y, np.ones_like(x)], axis=-1) @ rig.T_body_view[view_of(frame.index), :3, :3].T
            found.append(psnr(frame.rgb, seen(rays / np.linalg.norm(rays, axis=-1, keepdims=True), seed)))
    return found


def write(folder: Path, picture: Picture) -> Path:
    folder.mkdir(exist_ok=True)
    cv2.imwrite(str(folder / "0.png"), picture[..., ::-1])
    return folder


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("seed", range(3))
def test_cube_maps_give_the_views_of_what_is_around(tmp_path: Path, name: str, seed: int) -> None:
    middle_to_z = np.roll(around(384, seed), 384, axis=1)
    wanted = qualities(write(tmp_path / "round", middle_to_z), seed)
    found = qualities(write(tmp_path / "cube", cube_map(name, seed=seed)), seed)
    assert min(found) > 40 and np.all(np.array(found) > np.array(wanted) - 3)


@pytest.mark.parametrize("name", LAYOUTS)
def test_no_face_bleeds_into_another_one(name: str) -> None:
    layout = find_layout(cube_map(name))
    assert layout is not None
    rows, columns = 6 // layout.columns, layout.columns
    flat = np.repeat(np.repeat(np.arange(0, 240, 40, dtype=np.uint8).reshape(rows, columns), 96, 0), 96, 1)
    for number in range(4):
        assert {*np.unique(cut_view(np.dstack([flat] * 3), number, layout))} <= {*range(0, 240, 40)}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.skipif(which("ffmpeg") is None, reason="ffmpeg is not installed")
def test_ffmpeg_makes_the_same_cube_maps(tmp_path: Path, name: str) -> None:
    kinds = {"3x2": "c3x2", "YouTube": "eac:w=576:h=384", "6x1": "c6x1", "1x6": "c1x6"}
    folder = write(tmp_path, np.roll(around(384), 384, axis=1))
    if name not in kinds:
        pytest.skip("no filter by this name")
    words = f"ffmpeg -v error -i {folder}/0.png -vf v360=e:{kinds[name]}:interp=cubic {folder}/cube.png"
    subprocess.run(words.split(), check=True)
    assert min(qualities(folder / "cube.png")) > 30  # its equi-angular faces have borders of two pixels


def test_ordinary_pictures_are_no_cube_maps() -> None:
    with open_source(str(SAMPLE), FrameChoice(stride=20)) as source:
        frames = [frame.rgb for frame in source]
    frames += [view(300, 450, seed) for seed in range(4)]
    for frame in frames:
        height, width = frame.shape[:2]
        for aspect in (3 / 2, 6, 1 / 6):
            part = frame[: min(height, round(width / aspect)), : min(width, round(height * aspect))]
            sheet = grid([[cv2.resize(part, (96, 96))] * 3] * 2)
            for rgb in (part, sheet, np.hstack([part, part[:, ::-1]]), np.vstack([part, part[::-1]])):
                enlarged = np.asarray(cv2.resize(rgb, None, fx=2, fy=2), np.uint8)
                assert find_layout(enlarged) is None and find_layout(enlarged, is_stated=True) is None


@pytest.mark.parametrize("order", ["rdu/lfb", "bfr/dlu", "fblrud"])
def test_cube_maps_of_another_order_are_refused(tmp_path: Path, order: str) -> None:
    sides = dict(zip("rludfb", faces(), strict=True))
    folder = write(tmp_path, grid([[sides[face] for face in row] for row in order.split("/")]))
    with pytest.raises(InputError, match=r"cube map.*in no known order.*v360"), open_source(str(folder)) as source:
        list(source)


def film_of(path: Path, pictures: list[Picture]) -> Path:
    size = pictures[0].shape[1::-1]
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*"mp4v"), 10, size)
    for picture in pictures:
        writer.write(cv2.cvtColor(picture, cv2.COLOR_RGB2BGR))
    writer.release()
    return path


@pytest.mark.parametrize("mark", ["cbmp", "mshp"])
def test_films_that_are_marked_are_read_where_their_faces_join(tmp_path: Path, mark: str) -> None:
    proj = box(b"sv3d", box(b"proj", box(mark.encode(), bytes(12))))
    # Sides without texture above and below: what joins is enough for a film that says what it is.
    sides = dict(zip("rludfb", faces(), strict=True))
    for face in "ud":
        sides[face][:] = 128
    whole = grid([[sides[face] for face in row] for row in ("rlu", "dfb")])
    for name, picture in (("whole", cube_map("3x2", 96)), ("part", whole), ("none", view(192, 288))):
        path = film_of(tmp_path / f"{name}.mp4", [picture] * 2)
        path.write_bytes(insert_box(path.read_bytes(), TO_SAMPLE, proj))
    with open_source(str(tmp_path / "whole.mp4")) as source:
        assert len(list(source)) == 8 and any("faces RLUDFB in rows of 3" in line for line in source.warnings)
    for name in ("part", "none"):
        with pytest.raises(InputError, match="in no known order" if mark == "cbmp" else "headset"):
            open_source(str(tmp_path / f"{name}.mp4"))


def test_a_mark_of_matroska_is_read(tmp_path: Path) -> None:
    for name, picture in (("whole", cube_map("3x2", 96)), ("none", view(192, 288))):
        path = film_of(tmp_path / f"{name}.mkv", [picture] * 2)
        tree = elements(path.read_bytes())
        (segment,) = [inside for number, inside in tree if number == "18538067"]
        (tracks,) = [inside for number, inside in segment if number == "1654ae6b"]
        (track,) = [inside for number, inside in tracks if number == "ae"]
        (video,) = [inside for number, inside in track if number == "e0"]
        video.append(("7670", [("7671", b"\2"), ("7672", bytes(12))]))
        path.write_bytes(matroska(tree))
    with open_source(str(tmp_path / "whole.mkv")) as source:
        assert len(list(source)) == 8
    with pytest.raises(InputError, match="in no known order"):
        open_source(str(tmp_path / "none.mkv"))


SIDE, OVERLAP = 736, 32


def track(columns: list[Picture]) -> Picture:
    """A track of a GoPro MAX: what both lenses show, in the middle of the first and last face, is there twice."""
    half = (SIDE + OVERLAP) // 2
    first, middle, last = columns
    return np.hstack([first[:, :half], first[:, -half:], middle, last[:, :half], last[:, -half:]])


def two_tracks(path: Path, upper: list[Picture], lower: list[Picture]) -> Path:
    """A film of two video tracks."""
    one, other = (film_of(path.with_suffix(f".{k}.mp4"), film).read_bytes() for k, film in enumerate((upper, lower)))
    begin, end = find_box(one, [b"moov"])
    assert end == len(one), "the index stands at the end"
    at = find_box(other, [b"moov", b"trak"])
    trak = bytearray(other[slice(*at)])
    first, last = find_box(bytes(trak), [b"trak", b"mdia", b"minf", b"stbl", b"stco"])
    for place in range(first + 16, last, 4):
        (offset,) = struct.unpack_from(">I", trak, place)
        struct.pack_into(">I", trak, place, offset + begin + 8)
    path.write_bytes(one[:begin] + box(b"free", other) + box(b"moov", one[begin + 8 :], bytes(trak)))
    return path


def test_a_film_of_a_gopro_max_is_read_from_both_tracks(tmp_path: Path) -> None:
    pictures = [cube_map("YouTube", SIDE, seed) for seed in range(2)]
    halves = [[np.split(row, 3, axis=1) for row in np.split(picture, 2)] for picture in pictures]
    upper, lower = ([track(half[k]) for half in halves] for k in range(2))
    path = two_tracks(tmp_path / "a.360", upper, lower)
    assert min(qualities(path)) > 32  # of a film with losses
    with open_source(str(path)) as source:
        frames = list(source)
        assert [frame.index % 100 for frame in frames] == 4 * [0, 1]
        assert not any("tracks" in line for line in source.warnings)
    with open_source(str(two_tracks(tmp_path / "short.360", upper, lower[:1]))) as source:
        assert len(list(source)) == 4
    with pytest.raises(InputError, match=r"GoPro MAX in no known size or order.*export it"):
        open_source(str(two_tracks(tmp_path / "same.360", upper, upper)))
    alone = film_of(tmp_path / "alone.mp4", upper).rename(tmp_path / "alone.360")
    with pytest.raises(InputError, match="GoPro MAX"):
        open_source(str(alone))


def test_views_of_equirectangular_pictures_are_those_of_their_formula() -> None:
    picture = around(256)
    height, width = picture.shape[:2]
    k = view_camera(width)
    assert k.size is not None
    for number, T in enumerate(panorama_rig().T_body_view):
        x, y = np.meshgrid(*((np.arange(n) + 0.5 - n / 2) / k.fx for n in k.size))
        ray = np.stack([x, y, np.ones_like(x)], axis=-1) @ T[:3, :3].T
        column = (np.arctan2(ray[..., 0], ray[..., 2]) / (2 * np.pi) + 0.5) * width - 0.5
        row = (np.arctan2(ray[..., 1], np.hypot(ray[..., 0], ray[..., 2])) / np.pi + 0.5) * height - 0.5
        at = cv2.convertMaps(column.astype(np.float32), row.astype(np.float32), cv2.CV_16SC2)
        wanted = cv2.remap(picture, *at, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
        assert np.array_equal(cut_view(picture, number), wanted), "to the byte"


def test_directions_lie_where_faces_are() -> None:
    ahead = np.array([[0.0, 0, 1], [1, 0, 0], [0, 0, -1], [-1, 0, 0], [0, -1, 0], [0, 1, 0]])
    column, row = SphereLayout(3, "rludfb").places(ahead, 300, 200)
    np.testing.assert_allclose(column, [149.5, 49.5, 249.5, 149.5, 249.5, 49.5])
    np.testing.assert_allclose(row, [149.5, 49.5, 149.5, 49.5, 49.5, 149.5])
    quarter = np.array([np.sin(np.pi / 8), 0, np.cos(np.pi / 8)])
    for layout, wanted in ((EQUI_ANGULAR, 75), (SphereLayout(3, "lfrdbu"), 50 * (1 + np.tan(np.pi / 8)))):
        np.testing.assert_allclose(layout.places(quarter, 300, 200)[0], 100 + wanted - 0.5)


@pytest.mark.parametrize("name", ["3x2", "YouTube"])
def test_who_carries_the_camera_is_found_in_a_cube_map(name: str) -> None:
    layout = find_layout(cube_map(name, 96))
    assert layout is not None
    row, column = divmod("".join(LAYOUTS[name][0].split("/")).index("b"), 3)
    turns, carrier = LAYOUTS[name][1].get("b", 0), around(seed=9)[:30, :40]
    walk = [cube_map(name, 96, seed) for seed in range(24)]
    assert find_carrier(walk, layout) is None
    for picture in walk:
        face = np.rot90(picture[96 * row : 96 * (row + 1), 96 * column : 96 * (column + 1)], -turns)
        face[54:84, 28:68] = carrier

    mask = find_carrier(walk, layout)

    # Behind the camera: at the left and right border of the equirectangular mask, below the horizon.
    assert mask is not None and mask[80, :12].all() and mask[80, -12:].all() and not mask[:, 40:-40].any()
