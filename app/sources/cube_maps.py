"""Layouts of pictures of 360 degrees: where a direction lies in a picture, and which cube map a picture is."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import cv2
import numpy as np
from numpy.typing import NDArray

ASPECT = 0.01
"""Relative difference from an aspect ratio such as 2:1 up to which an image may have the layout."""
TEXTURE, EVEN = 6.0, 5.0
"""Standard deviation in grey levels that an edge must have, as a border fits any other one, and that a border may."""
FACE, ALIKE = 128, 0.5
"""Side in pixels to which faces are reduced, and difference of edges that continue each other, as a share of the usual
one of edges of two faces: mostly it is .1 to .4."""
JOINED, LONELY = 4, 2
"""Fewest edges of faces that continue one that is elsewhere in the image, and most textured edges that continue none.
Of the squares of an ordinary picture, no outer edges continue each other."""
AXES = {
    **{"f": ((1, 0, 0), (0, 1, 0), (0, 0, 1)), "b": ((-1, 0, 0), (0, 1, 0), (0, 0, -1))},
    **{"r": ((0, 0, -1), (0, 1, 0), (1, 0, 0)), "l": ((0, 0, 1), (0, 1, 0), (-1, 0, 0))},
    **{"u": ((1, 0, 0), (0, 0, 1), (0, -1, 0)), "d": ((1, 0, 0), (0, 0, -1), (0, 1, 0))},
}
"""Where right and down in an upright face, and its middle, lie for a camera: x right, y down, z forward."""


@dataclass(frozen=True)
class SphereLayout:
    """Where directions lie in a picture: equirectangular without ``faces``, else faces of a cube in rows."""

    columns: int = 2
    """Width over height of an equirectangular picture; else faces in a row."""
    faces: str = ""
    """Letters of `AXES`: front, right, back, left, up, down."""
    turns: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    """Quarter turns counterclockwise that make each face upright."""
    equal_angles: bool = False
    """Whether equal angles, not equal distances on the cube, have equal numbers of pixels (equi-angular)."""

    @cached_property
    def axes(self) -> NDArray[np.float64]:
        """Right, down and middle [6, 3, 3] of the faces as they stand in the picture."""
        by_quarter, faces = [[0, -1], [1, 0]], zip(self.faces, self.turns, strict=True)
        found = [[*(np.linalg.matrix_power(by_quarter, k) @ AXES[f][:2]), AXES[f][2]] for f, k in faces]
        return np.array(found, np.float64)

    def width_around(self, width: int, height: int) -> int:
        """Width of an equirectangular picture with the resolution of this one in the middle of a face."""
        side = height * self.columns / 6
        return round((4 if self.equal_angles else np.pi) * side) if self.faces else width

    def places(self, rays: NDArray[np.float64], width: int, height: int) -> tuple[NDArray[np.float64], ...]:
        """Column and row of directions [..., 3] in a picture. Those of a face stay within it, so that none bleeds."""
        if not self.faces:
            longitude = np.arctan2(rays[..., 0], rays[..., 2])
            latitude = np.arctan2(rays[..., 1], np.hypot(rays[..., 0], rays[..., 2]))
            return (longitude / (2 * np.pi) + 0.5) * width - 0.5, (latitude / np.pi + 0.5) * height - 0.5
        cell = np.argmax(rays @ self.axes[:, 2].T, axis=-1)
        seen = np.einsum("...ij,...j->i...", self.axes[cell], rays)
        across = seen[:2] / seen[2]
        share = (np.arctan(across) * 4 / np.pi if self.equal_angles else across) / 2 + 0.5
        side = np.reshape([width / self.columns, height * self.columns / 6], (2, *[1] * cell.ndim))
        begin = np.stack([cell % self.columns, cell // self.columns]) * side
        at = np.clip(begin + share * side - 0.5, np.ceil(begin), np.floor(begin + side) - 1)
        return at[0], at[1]


EQUIRECTANGULAR = SphereLayout()
EQUI_ANGULAR = SphereLayout(3, "lfrdbu", (0, 0, 0, 3, 1, 3), equal_angles=True)  # YouTube
CONVENTIONS = (EQUI_ANGULAR, *(SphereLayout(*of) for of in ((3, "rludfb"), *product((6, 1), ("rludfb", "frblud")))))
"""Those that are known. Programs turn up and down face as they like: their turns are found."""


def may_be_round(sizes: Iterable[tuple[int, int] | None]) -> bool:
    """Whether an image of one of these sizes, upright or turned, may have a layout; None: not known."""
    aspects = (2.0 if size is None else max(size) / max(1, min(size)) for size in sizes)
    return any(abs(aspect / wanted - 1) <= ASPECT for aspect in aspects for wanted in (2, 3 / 2, 6))


def has_aspect(rgb: NDArray[np.uint8], aspect: float) -> bool:
    """Whether width over height of an image [H, W, 3] is about ``aspect``."""
    return bool(abs(rgb.shape[1] / (aspect * rgb.shape[0]) - 1) <= ASPECT)


def grey_at(rgb: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.float32]:
    """Grey levels at a size (width, height)."""
    small = cv2.resize(rgb, size, interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), np.float32)


def find_layout(rgb: NDArray[np.uint8], *, is_stated: bool = False) -> SphereLayout | None:
    """The known convention of a cube map [H, W, 3], if any. ``is_stated``: its file says that it is a cube map."""
    for convention in CONVENTIONS:
        if min(rgb.shape[:2]) < FACE // 2 or not has_aspect(rgb, convention.columns**2 / 6):
            continue
        pairs, _ = _joined_edges(rgb, convention.columns)
        turns = (range(4) if face in "ud" else (k,) for face, k in zip(convention.faces, convention.turns, strict=True))
        layout = max((replace(convention, turns=k) for k in product(*turns)), key=lambda of: len(pairs & _touching(of)))
        joined = len(_away(pairs & _touching(layout), convention.columns))
        # Squares of an ordinary picture continue each other where faces of a cube do not.
        if joined >= JOINED and len(pairs - _touching(layout)) <= joined / (JOINED if is_stated else JOINED + LONELY):
            return layout
    return None


def _joined_edges(rgb: NDArray[np.uint8], columns: int) -> tuple[set[tuple[int, int]], int]:
    """Pairs of edges of the squares of an image [H, W, 3] that continue each other, and the number of textured edges.
    They are numbered by square: its upper, right, lower and left one."""
    rows, edge = 6 // columns, np.arange(24)
    grey = grey_at(rgb, (columns * FACE, rows * FACE))
    faces = grey.reshape(rows, FACE, columns, FACE).swapaxes(1, 2).reshape(6, FACE, FACE)
    edges = np.stack([np.rot90(faces, k, axes=(1, 2))[:, 0] for k in range(4)], axis=1).reshape(24, FACE)
    textured = edges.std(axis=1) >= TEXTURE
    apart = np.abs(edges[:, None] - edges[None, :, ::-1]).mean(axis=2)  # those that touch run in opposite directions
    apart[edge[:, None] // 4 == edge // 4] = np.nan
    usual, nearest = np.nanmean(apart, axis=1), np.nanargmin(apart, axis=1)
    joins = (apart[edge, nearest] <= ALIKE * np.sqrt(usual * usual[nearest])) & textured & textured[nearest]
    joins &= (nearest[nearest] == edge) & (edge < nearest)
    return {*zip(edge[joins].tolist(), nearest[joins].tolist(), strict=True)}, int(textured.sum())


def _touching(layout: SphereLayout) -> set[tuple[int, int]]:
    """Pairs of edges that touch on the cube: they have the same corners, in opposite order."""
    right, down, ahead = np.moveaxis(layout.axes, 1, 0)
    corners = np.stack([ahead - right - down, ahead + right - down, ahead + right + down, ahead - right + down], axis=1)
    begin, end = (np.reshape(at @ [1, 3, 9], 24) for at in (corners, np.roll(corners, -1, axis=1)))
    return {(a, b) for a, b in np.argwhere((begin[:, None] == end) & (end[:, None] == begin)).tolist() if a < b}


def _away(pairs: set[tuple[int, int]], columns: int) -> list[tuple[int, int]]:
    """How far the squares of pairs of edges are apart, in rows of so many, where they do not lie side by side."""
    places = [(a // 4 // columns - b // 4 // columns, a // 4 % columns - b // 4 % columns) for a, b in pairs]
    return [place for place in places if abs(place[0]) + abs(place[1]) > 1]


def is_cube_map(rgb: NDArray[np.uint8]) -> bool:
    """Whether an image [H, W, 3] is six faces of a cube, in a cross, or in rows of any order, each turned as it may."""
    is_cube = any(has_aspect(rgb, n * n / 6) and _is_cube(rgb, n) for n in (3, 2, 6, 1))
    return is_cube or _is_cross(rgb) or _is_cross(rgb.swapaxes(0, 1))


def _is_cube(rgb: NDArray[np.uint8], columns: int) -> bool:
    """Whether edges of squares, in rows of so many, continue each other as those of a cube do."""
    pairs, textured = _joined_edges(rgb, columns)
    # Two faces of a cube have one edge in common; of a symmetrical picture, several.
    is_single = len({(a // 4, b // 4) for a, b in pairs}) == len(pairs)
    return is_single and len(_away(pairs, columns)) >= JOINED and textured - 2 * len(pairs) <= LONELY


def _is_cross(rgb: NDArray[np.uint8]) -> bool:
    """Whether a row of four faces has one above and one below, and all else is of one colour."""
    if not has_aspect(rgb, 4 / 3):
        return False
    cells = grey_at(rgb, (128, 96)).reshape(3, 32, 4, 32).swapaxes(1, 2)[:, :, 1:-1, 1:-1]
    means, spread = cells.mean(axis=(2, 3)), cells.std(axis=(2, 3))
    for column in range(4):
        blank = np.ones((3, 4), bool)
        blank[1], blank[:, column] = False, False
        differ = np.abs(means[~blank] - means[blank].mean()) > EVEN
        is_one_colour = spread[blank].max() < EVEN / 2 and np.ptp(means[blank]) < EVEN
        if is_one_colour and differ.all() and (spread[~blank] > TEXTURE).sum() >= 4:
            return True
    return False
