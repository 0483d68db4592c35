"""Panoramas of 360 degrees without a mark are read as views where no camera is given; other layouts are refused."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.rig import VIEW_STRIDE, view_of
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.panorama import BESIDE, is_equirectangular, is_side_by_side, kind_of_picture
from stream_recon.app.sources.panorama_views import find_carrier
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import ConfigError, InputError

SAMPLE = Path(__file__).parents[3] / "app" / "sample" / "walkthrough.mp4"


def seen(rays: NDArray[np.float64], seed: int = 0) -> NDArray[np.uint8]:
    """Colours [..., 3] of a textured room: they depend on the direction [..., 3] alone."""
    random = np.random.default_rng(seed)
    waves = np.sin(rays @ random.normal(0, 4, (3, 24)) + random.uniform(0, 6, 24))
    grey = 128 + 160 * (waves @ random.normal(0, 0.2, (24, 3)))
    return np.asarray(np.clip(grey, 0, 255), np.uint8)


def around(height: int = 128, seed: int = 0) -> NDArray[np.uint8]:
    """What a camera for all directions sees in a textured room."""
    azimuth = (np.arange(2 * height) + 0.5) / height * np.pi
    elevation = ((np.arange(height) + 0.5) / height - 0.5) * np.pi
    a, e = np.meshgrid(azimuth, elevation)
    return seen(np.stack([np.cos(e) * np.sin(a), np.sin(e), np.cos(e) * np.cos(a)], axis=-1), seed)


def faces(side: int = 96, seed: int = 0, *, equal_angles: bool = False) -> list[NDArray[np.uint8]]:
    """Right, left, up, down, front and back face of a cube."""
    at = (np.arange(side) + 0.5) / side * 2 - 1
    x, y = np.meshgrid(*[np.tan(at * np.pi / 4) if equal_angles else at] * 2)
    one = np.ones_like(x)
    directions = [(one, y, -x), (-one, y, x), (x, -one, y), (x, one, -y), (x, y, one), (-x, y, -one)]
    rays = [np.stack(direction, axis=-1) for direction in directions]
    return [seen(ray / np.linalg.norm(ray, axis=-1, keepdims=True), seed) for ray in rays]


def grid(cells: list[list[NDArray[np.uint8]]]) -> NDArray[np.uint8]:
    return np.vstack([np.hstack(row) for row in cells])


def view(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """What a pinhole camera of 80 degrees sees of the room."""
    x, y = np.meshgrid(np.linspace(-0.84, 0.84, width), np.linspace(-0.84, 0.84, height) * height / width)
    rays = np.stack([x, y, np.ones_like(x)], axis=-1)
    return seen(rays / np.linalg.norm(rays, axis=-1, keepdims=True), seed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("equal_angles", [False, True])
def test_cube_maps_are_found_in_every_layout(seed: int, equal_angles: bool) -> None:
    r, l, u, d, f, b = faces(seed=seed, equal_angles=equal_angles)  # noqa: E741
    turned = [np.rot90(face, turn).copy() for face, turn in ((d, 1), (b, 3), (u, 1))]
    black = np.zeros_like(f)
    layouts = (
        [[r, l, u], [d, f, b]],
        [[l, f, r], turned],
        [[r, l, u, d, f, b]],
        [[r], [l], [u], [d], [f], [b]],
        [[r, l], [u, d], [f, b]],
        [[black, u, black, black], [l, f, r, b], [black, d, black, black]],
        [[black, u, black], [l, f, r], [black, d, black], [black, np.rot90(b, 2), black]],
    )
    for layout in layouts:
        assert "cube map" in kind_of_picture(grid(layout))


@pytest.mark.parametrize("seed", range(4))
def test_two_circles_on_black_are_fish_eyes(seed: int) -> None:
    x, y = np.meshgrid(*[np.linspace(-1, 1, 128)] * 2)
    angle, radius = np.arctan2(y, x), np.hypot(x, y)
    rays = [
        np.stack([np.sin(1.6 * radius) * np.cos(angle), np.sin(1.6 * radius) * np.sin(angle), z], axis=-1)
        for z in (np.cos(1.6 * radius), -np.cos(1.6 * radius))
    ]
    both = [np.where(radius[..., None] < 0.97, seen(ray, seed) // 2 + 60, 3).astype(np.uint8) for ray in rays]
    assert "fish-eye" in kind_of_picture(np.hstack(both)) and "fish-eye" in kind_of_picture(np.vstack(both))


@pytest.mark.parametrize(
    ("height", "width", "radius"), [(150, 200, 72), (150, 150, 74), (108, 192, 92), (200, 120, 96)]
)
def test_one_circle_on_black_is_a_fish_eye(height: int, width: int, radius: float) -> None:
    picture = view(height, width)
    rows, columns = np.indices((height, width))
    away = np.hypot(columns - width / 2 + 3, rows - height / 2 - 1)
    assert "fish-eye" in kind_of_picture(np.where(away[..., None] < radius, picture // 2 + 60, 4).astype(np.uint8))
    for bars in (np.abs(columns - width / 2), np.abs(rows - height / 2), columns, rows):
        assert kind_of_picture(np.where(bars[..., None] < radius * 0.6, picture, 4).astype(np.uint8)) == ""
    vignette = np.clip(1.4 - away / radius, 0, 1)[..., None]
    assert kind_of_picture((picture * vignette).astype(np.uint8)) == ""


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    ("height", "width"), [(200, 400), (200, 300), (300, 200), (225, 400), (300, 400), (400, 300), (60, 360), (300, 300)]
)
def test_pictures_are_ordinary_also_where_their_halves_mirror_each_other(seed: int, height: int, width: int) -> None:
    picture = view(height, width, seed)
    half = picture[:, : width // 2]
    quarter = half[: height // 2]
    for ordinary in (
        picture,
        np.hstack([half, half[:, ::-1]]),
        np.vstack([picture[: height // 2], picture[: height // 2][::-1]]),
        np.vstack([np.hstack([quarter, quarter[:, ::-1]]), np.hstack([quarter[::-1], quarter[::-1, ::-1]])]),
        picture // 16,
    ):
        assert kind_of_picture(ordinary) == ""


def test_pictures_of_the_sample_are_ordinary_in_every_shape() -> None:
    with open_source(str(SAMPLE), FrameChoice(stride=20)) as source:
        for frame in source:
            height, width = frame.rgb.shape[:2]
            for aspect in (2, 3 / 2, 16 / 9, 4 / 3, 1, 3 / 4, 2 / 3):
                part = frame.rgb[: min(height, round(width / aspect)), : min(width, round(height * aspect))]
                assert kind_of_picture(part) == ""


@pytest.mark.parametrize("squeezed", [1, 2])
@pytest.mark.parametrize("axis", [0, 1])
def test_two_views_of_one_place_are_found_in_every_shape(squeezed: int, axis: int) -> None:
    with open_source(str(SAMPLE), FrameChoice(max_frames=60)) as source:
        frames = [frame.rgb for frame in source]
    found = []
    for n in range(0, 58, 8):
        pair = np.concatenate([frames[n], frames[n + 1]], axis=axis)
        size = (pair.shape[1] // (squeezed if axis else 1), pair.shape[0] // (1 if axis else squeezed))
        small = np.asarray(cv2.resize(pair, size, interpolation=cv2.INTER_AREA), np.uint8)
        found.append(kind_of_picture(small))
    assert sum(kind.startswith("two views") for kind in found) >= 6
    assert {kind == BESIDE for kind in found if kind} == {axis == 1}


@pytest.mark.parametrize("seed", range(6))
def test_panoramas_close_and_parts_of_them_do_not(seed: int) -> None:
    panorama = around(seed=seed)
    assert is_equirectangular(panorama)
    assert is_equirectangular(np.roll(panorama, 77, axis=1)), "the seam may be anywhere"
    view = cv2.resize(panorama[20:84, 60:188], (256, 128))
    assert not is_equirectangular(np.asarray(view, np.uint8))


def test_wide_pictures_of_the_sample_do_not_close() -> None:
    with open_source(str(SAMPLE), FrameChoice(stride=20)) as source:
        for frame in source:
            height = frame.rgb.shape[1] // 2
            assert not is_equirectangular(frame.rgb[:height])
            assert not is_equirectangular(np.full_like(frame.rgb[:height], 90))
            framed = frame.rgb[:height].copy()
            framed[:, :8] = framed[:, -8:] = 0
            assert not is_equirectangular(framed), "borders of one colour fit each other"


def test_a_panorama_is_read_as_views_of_a_rig(tmp_path: Path) -> None:
    for number in range(2):
        cv2.imwrite(str(tmp_path / f"{number}.png"), around(256, seed=number)[..., ::-1])
    with open_source(str(tmp_path)) as source:
        frames, rig, k = list(source), source.rig, source.intrinsics
    assert rig is not None and k is not None and source.camera is None
    assert [(view_of(f.index), f.index % VIEW_STRIDE, f.segment) for f in frames] == [
        (view, number, view) for view in range(4) for number in range(2)
    ]
    for frame in frames:
        height, width = frame.rgb.shape[:2]
        x, y = np.meshgrid((np.arange(width) + 0.5 - k.cx) / k.fx, (np.arange(height) + 0.5 - k.cy) / k.fy)
        rays = np.stack([x, y, np.ones_like(x)], axis=-1) @ rig.T_body_view[view_of(frame.index), :3, :3].T
        # The middle of the picture of `around` looks to -z.
        wanted = seen(rays / np.linalg.norm(rays, axis=-1, keepdims=True) * (-1, 1, -1), frame.index % VIEW_STRIDE)
        assert np.abs(frame.rgb.astype(float) - wanted).mean() < 3
        assert np.array_equal(frame.turn, rig.T_body_view[view_of(frame.index), :3, :3])


def test_what_stays_the_same_is_a_carrier_to_one_side_alone() -> None:
    floor = [np.roll(around(), 10 * number, axis=1) for number in range(24)]
    for picture in floor:
        picture[68:] = np.linspace(90, 120, picture.shape[1]).astype(np.uint8)[:, None]
    assert find_carrier(floor) is None, "a floor without texture"
    walk = [np.roll(around(), 10 * number, axis=1) for number in range(24)]
    for picture in walk:
        picture[72:100, 236:] = around(seed=5)[72:100, 236:]
        picture[72:100, :10] = around(seed=5)[72:100, :10]
    carrier = find_carrier(walk)
    assert carrier is not None and carrier[80, 240:].all() and carrier[80, :6].all() and not carrier[:, 20:220].any()
    for picture in walk:
        picture[72:100, 110:138] = around(seed=6)[72:100, 110:138]
    assert find_carrier(walk) is None, "the same ahead and behind, as a road"
    assert find_carrier(walk[:5]) is None and find_carrier([around()] * 24) is None


@pytest.mark.parametrize(("is_carried", "moves"), [(True, True), (False, True), (True, False)])
def test_who_carries_the_camera_is_masked_where_all_else_moves(tmp_path: Path, is_carried: bool, moves: bool) -> None:
    """A patch below the horizon, in the back view, that stays where it is while the room turns."""
    for number in range(24):
        picture = np.roll(around(), 10 * number * moves, axis=1)
        if is_carried:
            picture[75:105, 3:25] = around(seed=5)[75:105, 3:25]
        cv2.imwrite(str(tmp_path / f"{number:02d}.png"), picture)
    with open_source(str(tmp_path), FrameChoice(stride=2)) as source:
        frames = list(source)
        assert any("is masked" in line for line in source.warnings) == (is_carried and moves)
    masks = {view_of(frame.index): frame.mask for frame in frames}
    if not (is_carried and moves):
        assert all(mask is None for mask in masks.values())
        return
    back = masks.pop(2)
    assert back is not None and 0.03 < back.mean() < 0.15 and all(mask is None for mask in masks.values())


def test_a_wide_picture_is_no_panorama_where_its_camera_is_given(tmp_path: Path) -> None:
    for number in range(2):
        cv2.imwrite(str(tmp_path / f"{number}.png"), around()[..., ::-1])
    with open_source(str(tmp_path), FrameChoice(camera="200,200,128,64")) as source:
        assert len(list(source)) == 2 and source.rig is None


def test_the_choice_of_frames_is_that_of_each_view(tmp_path: Path) -> None:
    for number in range(7):
        cv2.imwrite(str(tmp_path / f"{number}.png"), around(seed=number)[..., ::-1])
    with open_source(str(tmp_path), FrameChoice(stride=2, max_frames=3)) as source:
        assert [frame.index % VIEW_STRIDE for frame in source] == 4 * [0, 2, 4]
    with pytest.raises(ConfigError, match="--masks is not for panoramas"):
        open_source(str(tmp_path), FrameChoice(masks=str(tmp_path)))


def test_two_views_side_by_side_are_refused_unless_the_camera_is_given(tmp_path: Path) -> None:
    with open_source(str(SAMPLE), FrameChoice(max_frames=60)) as source:
        frames = [frame.rgb for frame in source]
    pairs = [np.hstack([frames[n], frames[n + 1]]) for n in range(0, 58, 8)]
    assert sum(map(is_side_by_side, pairs)) >= 7
    apart = [np.hstack([frames[n], frames[-1 - n][::-1]]) for n in range(0, 20, 4)]
    wide = [frame[60:200] for frame in frames[::5]]
    assert not any(map(is_side_by_side, [*apart, *wide, *frames[::8]]))
    for number, pair in enumerate(pairs[2:4]):
        cv2.imwrite(str(tmp_path / f"{number}.png"), pair[..., ::-1])
    with pytest.raises(InputError, match=r"two views side by side.*crop.*--intrinsics"):  # noqa: SIM117
        with open_source(str(tmp_path)) as source:
            list(source)
    with open_source(str(tmp_path), FrameChoice(camera="400,400,384,144")) as source:
        assert len(list(source)) == 2


@pytest.mark.parametrize(
    ("prefix", "tag", "word", "message"),
    [
        ("GPano", "ProjectionType", "equirectangular", "64x48 is not 2:1"),
        ("other", "ProjectionType", "equirectangular", "64x48 is not 2:1"),
        ("GPano", "CroppedAreaImageWidthPixels='9' GPano:ProjectionType", "equirectangular", "a part of a panorama"),
        ("GPano", "ProjectionType", "cylindrical", "a cylindrical panorama"),
        ("GPano", "Projection", "equirectangular", "no ProjectionType"),
        ("GPano", "ProjectionType", "perspective", None),
    ],
)
def test_photographs_say_their_projection(
    tmp_path: Path, prefix: str, tag: str, word: str, message: str | None
) -> None:
    space = f'xmlns:{prefix}="http://ns.google.com/photos/1.0/panorama/"'
    part = f'http://ns.adobe.com/xap/1.0/\0<rdf:Description {space} {prefix}:{tag}="{word}"/>'.encode()
    data = cv2.imencode(".jpg", np.zeros((48, 64, 3), np.uint8))[1].tobytes()
    size = (len(part) + 2).to_bytes(2, "big")
    (tmp_path / "a.jpg").write_bytes(data[:2] + b"\xff\xe1" + size + part + data[2:])
    if message is None:
        assert len(list(open_source(str(tmp_path)))) == 1
    else:
        with pytest.raises(InputError, match=message):
            open_source(str(tmp_path))
