"""What the windows' runs told of themselves, as one run of the whole would have told it."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from stream_recon.app.batch.alignment import AlignedChunks
from stream_recon.app.pipeline.health import HealthWatch, WeakInterval, weak_spans
from stream_recon.app.result.cameras import Camera


def stitched_health(joined: AlignedChunks) -> dict[str, Any]:
    """Of ``run.json``: each window counts for the frames that were taken from it."""
    values: list[float] = []
    spans: list[WeakInterval] = []
    last = -1
    for number, window in enumerate(joined.windows):
        cameras = list(joined.frames_of(number))
        values += [camera.health for camera in cameras if camera.health is not None]
        told = window.run.get("health")
        for span in weak_spans(told) if isinstance(told, dict) else []:
            inside = [camera for camera in cameras if span.first <= camera.index <= span.last]
            if not inside:
                continue
            part = _span(span.why, inside)
            if spans and inside[0] is cameras[0] and spans[-1].last == last:
                # It goes on over the seam.
                before = spans.pop()
                part = dataclasses.replace(before, last=part.last, end=part.end, frames=before.frames + part.frames)
            spans.append(part)
        last = cameras[-1].index if cameras else last
    return HealthWatch(values, spans).summary()


def stitched_stretches(joined: AlignedChunks) -> tuple[dict[str, Any], ...]:
    """Of ``run.json``: those that begin with a frame that was taken from the window that told of them."""
    return tuple(_stretches(joined))


def _stretches(joined: AlignedChunks) -> Iterator[dict[str, Any]]:
    for number, window in enumerate(joined.windows):
        taken = {camera.index for camera in joined.frames_of(number)}
        told = window.run.get("stretches")
        yield from (stretch for stretch in (told if isinstance(told, list) else []) if stretch["index"] in taken)


def _span(why: str, cameras: Sequence[Camera]) -> WeakInterval:
    first, last = cameras[0], cameras[-1]
    return WeakInterval(first.index, last.index, first.timestamp, last.timestamp, len(cameras), why)
