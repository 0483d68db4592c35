"""Floor plan of a scene: what is seen from straight above below a height, with walls cut at it and a scale bar."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.gltf import Primitive

SIDE_PX = 1600
"""Longer side of the drawing in pixels."""
BORDER_PX = 60
"""Border around the drawing, which has the scale bar below."""
SAMPLES_PER_PIXEL = 1.6
"""Samples along each pixel of a triangle, so that no hole is left."""
MAX_SAMPLES = 12_000_000
"""Bound of all samples; above it triangles are sampled less finely."""
INK, PAPER = (30, 30, 30), (255, 255, 255)
CUT_PX = 3
"""Thickness of walls that are cut."""


@dataclass(frozen=True)
class PlanFrame:
    """Position of a plan's picture: x to the right, z down, both in the unit of the scene, and the cutting height y."""

    low: tuple[float, float]
    high: tuple[float, float]
    height: float

    @property
    def pixel(self) -> float:
        """Length of a pixel."""
        return max(self.high[0] - self.low[0], self.high[1] - self.low[1], 1e-9) / SIDE_PX

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the drawing in pixels."""
        w, h = ((high - low) / self.pixel for low, high in zip(self.low, self.high, strict=True))
        return max(1, round(w)), max(1, round(h))

    def pixels(self, xyz: NDArray[np.floating]) -> NDArray[np.float64]:
        """Column and row [N, 2] of points [N, 3]."""
        return np.asarray((np.asarray(xyz)[:, [0, 2]] - self.low) / self.pixel)


def floor_plan(primitives: Sequence[Primitive], frame: PlanFrame, unit: str) -> NDArray[np.uint8]:
    """The plan as RGB [h, w, 3].

    ``primitives``: triangles and points in axes x right, y up, z down the page.
    """
    width, height = frame.size
    canvas = np.empty((height, width, 3), np.uint8)
    canvas[:] = PAPER
    top = np.full((height, width), -np.inf)
    segments = []
    for primitive in primitives:
        if primitive.faces is None:
            _draw(canvas, top, frame, np.asarray(primitive.xyz, np.float64), _colours(primitive))
        elif len(primitive.faces):
            _draw_triangles(canvas, top, frame, primitive)
            segments.append(cut_segments(primitive.xyz, primitive.faces, frame.height))
    for a, b in np.concatenate([np.zeros((0, 2, 3)), *segments]):
        ends = np.rint(16 * frame.pixels(np.stack([a, b]))).astype(int)
        cv2.line(canvas, ends[0].tolist(), ends[1].tolist(), INK, CUT_PX, cv2.LINE_AA, shift=4)
    return _framed(canvas, frame, unit)


def cut_segments(xyz: NDArray[np.floating], faces: NDArray[np.integer], height: float) -> NDArray[np.float64]:
    """Segments [n, 2, 3] in which triangles meet the plane y = ``height``."""
    corners = np.asarray(xyz, np.float64)[faces]
    above = corners[..., 1] >= height
    count = above.sum(axis=1)
    crossing = (count == 1) | (count == 2)
    corners, above, count = corners[crossing], above[crossing], count[crossing]
    lone = np.where(count == 1, above.argmax(axis=1), above.argmin(axis=1))
    turned = np.take_along_axis(corners, ((lone[:, None] + np.arange(3)) % 3)[..., None], axis=1)
    a, others = turned[:, :1], turned[:, 1:]
    share = (height - a[..., 1]) / (others[..., 1] - a[..., 1])
    return np.asarray(a + share[..., None] * (others - a))


def _draw_triangles(
    canvas: NDArray[np.uint8], top: NDArray[np.float64], frame: PlanFrame, primitive: Primitive
) -> None:
    """Draw triangles that face up."""
    assert primitive.faces is not None
    corners = np.asarray(primitive.xyz, np.float64)[primitive.faces]
    normal = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    up = (normal[:, 1] > 0) & (corners[..., 1].min(axis=1) < frame.height)
    corners, faces = corners[up], primitive.faces[up]
    edges = np.linalg.norm((corners - np.roll(corners, 1, axis=1))[..., [0, 2]], axis=2).max(axis=1)
    steps = np.maximum(1, np.ceil(SAMPLES_PER_PIXEL * edges / frame.pixel)).astype(int)
    total = float(((steps + 1) * (steps + 2) / 2).sum())
    steps = np.maximum(1, (steps / max(1.0, np.sqrt(total / MAX_SAMPLES))).astype(int))
    colours, image = _colours(primitive), None
    if primitive.texture is not None and primitive.uv is not None:
        decoded = cv2.imdecode(np.frombuffer(primitive.texture, np.uint8), cv2.IMREAD_COLOR)
        image = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)
    for count in np.unique(steps).tolist():
        i, j = np.meshgrid(np.arange(count + 1), np.arange(count + 1), indexing="ij")
        inside = i + j <= count
        weights = np.stack([i[inside], j[inside], count - i[inside] - j[inside]], axis=1) / count
        chosen = steps == count
        xyz = np.einsum("sk,mkd->msd", weights, corners[chosen]).reshape(-1, 3)
        if image is not None and primitive.uv is not None:
            uv = np.einsum("sk,mkd->msd", weights, primitive.uv[faces[chosen]]).reshape(-1, 2)
            h, w = image.shape[:2]
            column, row = (np.clip(uv * (w, h), 0, (w - 1, h - 1))).astype(int).T
            rgb = image[row, column]
        else:
            rgb = np.einsum("sk,mkd->msd", weights, colours[faces[chosen]].astype(float)).reshape(-1, 3)
        _draw(canvas, top, frame, xyz, rgb)


def _draw(
    canvas: NDArray[np.uint8], top: NDArray[np.float64], frame: PlanFrame, xyz: NDArray[np.float64], rgb: NDArray[Any]
) -> None:
    """Draw points below the height; the highest one of each pixel is seen."""
    pixel = np.floor(frame.pixels(xyz)).astype(np.int64)
    width, height = frame.size
    shown = (pixel >= 0).all(axis=1) & (pixel < (width, height)).all(axis=1) & (xyz[:, 1] < frame.height)
    column, row = pixel[shown].T
    y = xyz[shown, 1]
    flat, tops = row * width + column, top.reshape(-1)
    np.maximum.at(tops, flat, y)
    highest = y >= tops[flat]
    canvas.reshape(-1, 3)[flat[highest]] = np.rint(rgb[shown][highest])


def _colours(primitive: Primitive) -> NDArray[np.uint8]:
    if primitive.rgb is not None:
        return primitive.rgb
    return np.tile(np.rint(255 * np.array(primitive.colour)).astype(np.uint8), (len(primitive.xyz), 1))


def _framed(canvas: NDArray[np.uint8], frame: PlanFrame, unit: str) -> NDArray[np.uint8]:
    """The drawing with a border and a scale bar."""
    h, w = canvas.shape[:2]
    image = np.empty((h + 2 * BORDER_PX, max(w, 300) + 2 * BORDER_PX, 3), np.uint8)
    image[:] = PAPER
    image[BORDER_PX : BORDER_PX + h, BORDER_PX : BORDER_PX + w] = canvas
    length = bar_length(w * frame.pixel / 3)
    bar = round(length / frame.pixel)
    y = BORDER_PX + h + BORDER_PX // 2
    cv2.line(image, (BORDER_PX, y), (BORDER_PX + bar, y), INK, 3)
    for x in (BORDER_PX, BORDER_PX + bar):
        cv2.line(image, (x, y - 8), (x, y + 8), INK, 3)
    cv2.putText(
        image, f"{length:g} {unit}", (BORDER_PX + bar + 16, y + 8), cv2.FONT_HERSHEY_SIMPLEX, 0.8, INK, 2, cv2.LINE_AA
    )
    return image


def bar_length(limit: float) -> float:
    """The largest of 1, 2 or 5 times a power of ten that is at most ``most``."""
    power = 10.0 ** np.floor(np.log10(max(limit, 1e-9)))
    return float(next(step * power for step in (5, 2, 1) if step * power <= limit * (1 + 1e-9)))
