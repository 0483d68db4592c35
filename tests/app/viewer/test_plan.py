import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.gltf import POINTS, Primitive
from stream_recon.app.viewer.plan import BORDER_PX, INK, PlanFrame, bar_length, cut_segments, floor_plan

SHARE = 0.25
"""Of the room's sides: its triangles are small in the drawing, which takes time for each of their pixels."""
FLOOR, TABLE, CEILING = (200, 30, 30), (30, 200, 30), (30, 30, 200)


def quad(corners: list[tuple[float, float, float]], colour: tuple[int, int, int]) -> Primitive:
    xyz = np.array(corners, np.float32) * np.float32([SHARE, 1, SHARE])
    return Primitive(xyz, np.array([[0, 1, 2], [0, 2, 3]], np.int32), np.tile(np.uint8(colour), (4, 1)))


def level(x0: float, x1: float, z0: float, z1: float, y: float, colour: tuple[int, int, int]) -> Primitive:
    """A rectangle that faces up."""
    return quad([(x0, y, z0), (x0, y, z1), (x1, y, z1), (x1, y, z0)], colour)


def room() -> list[Primitive]:
    """A room of 4 by 3 with a table, a wall at x = 1 and a ceiling that faces down."""
    ceiling = level(0, 4, 0, 3, 2.5, CEILING)
    assert ceiling.faces is not None
    down = Primitive(ceiling.xyz, ceiling.faces[:, ::-1].copy(), ceiling.rgb)
    wall = quad([(1, 0, 0), (1, 0, 3), (1, 2.5, 3), (1, 2.5, 0)], (90, 90, 90))
    return [level(0, 4, 0, 3, 0, FLOOR), level(2, 3, 1, 2, 0.8, TABLE), down, wall]


def at(image: NDArray[np.uint8], frame: PlanFrame, x: float, z: float) -> tuple[int, ...]:
    column, row = (frame.pixels(SHARE * np.array([[x, 0, z]]))[0] + BORDER_PX).astype(int)
    return tuple(int(value) for value in image[row, column])


def test_a_plan_shows_what_is_below_the_height_from_above() -> None:
    frame = PlanFrame((0, 0), (4, 3), 1.4)
    image = floor_plan(room(), frame, "m")
    assert at(image, frame, 0.5, 0.5) == FLOOR and at(image, frame, 2.5, 1.5) == TABLE
    assert at(image, frame, 1.0, 1.5) == INK, "the wall is cut"
    # x to the right and z down: not mirrored.
    assert at(image, frame, 3.5, 1.5) == FLOOR == at(image, frame, 2.5, 0.5)
    low = floor_plan(room(), PlanFrame((0, 0), (4, 3), 0.5), "m")
    assert at(low, frame, 2.5, 1.5) == FLOOR, "the table is above"
    assert frame.size == (1600, 1200)


def test_textures_and_points_are_drawn_in_their_colours() -> None:
    image = np.zeros((64, 64, 3), np.uint8)
    image[:, :32], image[:, 32:] = (0, 0, 255), (255, 0, 0)  # red, then blue: OpenCV has BGR
    jpeg = bytes(cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, 100])[1])
    floor = level(0, 4, 0, 3, 0, FLOOR)
    uv = np.array([[0, 0], [0, 1], [1, 1], [1, 0]], np.float32)
    points = Primitive(
        np.array([[3.0 * SHARE, 1.0, 2.0 * SHARE]], np.float32), rgb=np.array([[9, 250, 9]], np.uint8), mode=POINTS
    )
    frame = PlanFrame((0, 0), (4, 3), 1.4)
    drawn = floor_plan([Primitive(floor.xyz, floor.faces, uv=uv, texture=jpeg), points], frame, "units")
    np.testing.assert_allclose(at(drawn, frame, 1, 1), (255, 0, 0), atol=12)
    np.testing.assert_allclose(at(drawn, frame, 2.5, 1), (0, 0, 255), atol=12)
    assert at(drawn, frame, 3.0, 2.0) == (9, 250, 9)


def test_walls_are_cut_along_the_height() -> None:
    wall = room()[3]
    assert wall.faces is not None
    segments = cut_segments(wall.xyz, wall.faces, 1.4)
    np.testing.assert_allclose(segments[..., :2], np.broadcast_to([SHARE, 1.4], segments[..., :2].shape), atol=1e-6)
    assert np.linalg.norm(segments[:, 1] - segments[:, 0], axis=1).sum() == pytest.approx(3 * SHARE)
    assert not len(cut_segments(wall.xyz, wall.faces, 3.0))


@pytest.mark.parametrize("most, length", [(1.0, 1), (1.9, 1), (2.0, 2), (7.3, 5), (0.034, 0.02), (1200, 1000)])
def test_the_scale_bar_has_a_round_length(most: float, length: float) -> None:
    assert bar_length(most) == pytest.approx(length)


def test_the_bar_is_as_long_as_it_says() -> None:
    frame = PlanFrame((0, 0), (4, 3), 1.4)
    image = floor_plan(room()[1:2], frame, "m")
    row = BORDER_PX + frame.size[1] + BORDER_PX // 2
    ink = np.flatnonzero((image[row] == INK).all(axis=1))
    run = ink[ink < ink[0] + 1 / frame.pixel + 20]
    assert run[-1] - run[0] == pytest.approx(1 / frame.pixel, abs=6)


def test_of_points_below_the_height_each_pixel_shows_the_highest() -> None:
    random = np.random.default_rng(1)
    count, frame = 4000, PlanFrame((1, -2), (1.05, -1.98), 1.4)
    spread = random.uniform(-0.1, 1.1, (count, 2)) * (0.05, 0.02) + frame.low
    xyz = np.column_stack([spread[:, 0], random.uniform(0, 2, count), spread[:, 1]])
    rgb = random.integers(0, 256, (count, 3)).astype(np.uint8)
    width, height = frame.size
    expected = np.full((height, width, 3), 255, np.uint8)
    top = np.full((height, width), -np.inf)
    for (x, y, z), colour in zip(xyz, rgb, strict=True):
        column, row = int(np.floor((x - 1) / frame.pixel)), int(np.floor((z + 2) / frame.pixel))
        if 0 <= column < width and 0 <= row < height and top[row, column] < y < frame.height:
            top[row, column], expected[row, column] = y, colour
    halves = [Primitive(xyz[half::2], rgb=rgb[half::2], mode=POINTS) for half in range(2)]
    drawn = floor_plan(halves, frame, "m")
    np.testing.assert_array_equal(drawn[BORDER_PX : BORDER_PX + height, BORDER_PX : BORDER_PX + width], expected)


def test_of_triangles_that_face_up_each_place_shows_the_highest() -> None:
    """Small level ones in a large frame, so that few samples are drawn."""
    random = np.random.default_rng(2)
    frame, count = PlanFrame((0, 0), (4, 3), 1.4), 12
    corners = random.uniform(0.6, 0.8, (count, 1, 2)) + random.uniform(-0.1, 0.1, (count, 3, 2))
    y = random.uniform(0, 2, count)
    colours = random.integers(0, 256, (count, 3)).astype(np.uint8)
    xyz = np.insert(corners, 1, y[:, None], axis=2).astype(np.float32)
    faces = np.array([[0, 1, 2]], np.int32)
    parts = [Primitive(p, faces, np.tile(colour, (3, 1))) for p, colour in zip(xyz, colours, strict=True)]
    image = floor_plan(parts, frame, "m")
    edges = np.roll(corners, -1, axis=1) - corners
    places = random.uniform(0.5, 0.9, (400, 2))
    to = places[:, None, None] - corners
    side = (edges[..., 1] * to[..., 0] - edges[..., 0] * to[..., 1]) / np.linalg.norm(edges, axis=-1)
    clear = (np.abs(side) > 4e-3).all(axis=(1, 2))  # pixels at a border belong to either side
    over = (side < 0).all(axis=2) | (side > 0).all(axis=2)
    up = np.cross(xyz[:, 1] - xyz[:, 0], xyz[:, 2] - xyz[:, 0])[:, 1] > 0
    heights = np.where(over & up & (y < 1.4), y, -1)
    assert clear.sum() > 100 and up.any() and not up.all()
    for (x, z), height in zip(places[clear], heights[clear], strict=True):
        expected = colours[height.argmax()] if height.max() >= 0 else (255, 255, 255)
        assert at(image, frame, x / SHARE, z / SHARE) == tuple(expected)


def test_small_textures_are_drawn_where_they_belong() -> None:
    texture = np.zeros((64, 64, 3), np.uint8)
    texture[:, :32], texture[:32, 32:], texture[32:, 32:] = (0, 0, 255), (255, 0, 0), (0, 255, 0)  # BGR
    jpeg = bytes(cv2.imencode(".jpg", texture, [cv2.IMWRITE_JPEG_QUALITY, 100])[1])
    floor = level(1, 1.2, 2, 2.1, 0, FLOOR)
    uv = np.array([[0, 0], [0, 1], [1, 1], [1, 0]], np.float32)
    frame = PlanFrame((0, 0), (4, 3), 1.4)
    drawn = floor_plan(
        [Primitive(floor.xyz, floor.faces, uv=uv, texture=jpeg), level(3, 3.1, 1, 1.1, 0, TABLE)], frame, "m"
    )
    for (x, z), colour in {(1.05, 2.05): (255, 0, 0), (1.15, 2.02): (0, 0, 255), (1.15, 2.08): (0, 255, 0)}.items():
        np.testing.assert_allclose(at(drawn, frame, x, z), colour, atol=16)
    assert at(drawn, frame, 3.05, 1.05) == TABLE and at(drawn, frame, 2, 2) == (255, 255, 255)
