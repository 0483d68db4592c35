"""Scene nodes of one page's tools: measured points and lengths, and the edges of a box. Only changes are sent."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

LINE, POINT, BOX = (255, 214, 10), (255, 59, 48), (64, 200, 255)
EDGES = np.array([(a, a | bit) for a in range(8) for bit in (1, 2, 4) if not a & bit])
"""Edges of a box by its corners, see `Box.corners`."""


class ToolNodes:
    """Nodes of one page."""

    def __init__(self, client: Any) -> None:
        self._scene = client.scene
        self._lines: dict[str, tuple[bytes, Any]] = {}
        self._measured = b""
        self._handles: list[Any] = []

    def show_box(self, corners: NDArray[np.float64] | None) -> None:
        """Show the edges of a box by its corners [8, 3], or none."""
        self._show_lines("/tools/box", np.zeros((0, 2, 3)) if corners is None else corners[EDGES], BOX, 2.0)

    def show_measured(
        self, points: NDArray[np.float64], segments: NDArray[np.float64], texts: Sequence[str], radius: float
    ) -> None:
        """Show points [N, 3] of a radius, and segments [n, 2, 3] with their texts."""
        self._show_lines("/tools/lines", segments, LINE, 4.0)
        state = points.tobytes() + "\n".join(texts).encode()
        if state == self._measured:
            return
        self._measured = state
        for handle in self._handles:
            handle.remove()
        self._handles = [
            self._scene.add_icosphere(
                f"/tools/points/{number}", radius, POINT, position=point, cast_shadow=False, receive_shadow=False
            )
            for number, point in enumerate(points)
        ]
        for number, (ends, text) in enumerate(zip(segments, texts, strict=True)):
            self._handles.append(self._scene.add_label(f"/tools/labels/{number}", text, position=ends.mean(axis=0)))

    def _show_lines(
        self, name: str, segments: NDArray[np.float64], colour: tuple[int, int, int], thickness: float
    ) -> None:
        state, handle = self._lines.get(name, (b"", None))
        if segments.tobytes() == state:
            return
        if len(segments):
            handle = self._scene.add_line_segments(
                name, segments.astype(np.float32), colour, thickness=thickness, thickness_units="screen"
            )
        elif handle is not None:
            handle.remove()
            handle = None
        self._lines[name] = segments.tobytes(), handle
