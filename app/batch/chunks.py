"""A long video in overlapping windows, each a unit of its own."""

import dataclasses

from stream_recon.app.batch.jobs import ChunkRange, Job, windows_folder
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError

MIN_OVERLAP = 12
MAX_OVERLAP = 48
OVERLAP_SHARE = 4
"""The overlap is this part of a window's own frames, within the bounds above."""
MIN_WINDOW = 2 * MIN_OVERLAP
"""A video too short for windows with so many frames of their own gets fewer windows."""


def open_unit(unit: Job, *, resumed: bool = False) -> Source:
    """The frames of a unit. Raises InputError. ``resumed``: `Source.resume` follows and passes over those before."""
    window, limit = unit.window, unit.choice.max_frames
    if window is None:
        return unit.scene.open(unit.choice.stride, limit)
    last = window.last if window.last is not None else limit
    source = unit.scene.open(unit.choice.stride, None if last is None else last - window.first)
    if not resumed:
        source.skip(window.first, read_through=unit.read_through)
    return source


def has_frames(unit: Job) -> bool:
    """Whether a unit has a frame that can be read at all."""
    try:
        with open_unit(unit) as source:
            return next(source, None) is not None
    except InputError:
        return False


def plan_windows(frames: int, count: int) -> list[ChunkRange]:
    """At most ``count`` windows over ``frames`` frames; each but the first begins with the end of the one before.

    The last one has no end, since containers err about their length.
    """
    count = max(1, min(count, frames // MIN_WINDOW))
    overlap = min(max(frames // (OVERLAP_SHARE * count), MIN_OVERLAP), MAX_OVERLAP)
    # All windows have the same number of frames, so that no worker waits for another.
    starts = [number * (frames - overlap) // count for number in range(count)]
    ends = [start + overlap for start in starts[1:]]
    return [ChunkRange(first, last) for first, last in zip(starts, [*ends, None], strict=True)]


def window_units(unit: Job, count: int) -> list[Job]:
    """The windows of a scene as units, in order; a single one if it is too short to be split.

    Raises:
        InputError: nothing says how long the scene is.
    """
    if unit.frames is None:
        raise InputError(f"{unit.scene.path} does not say how many frames it has: it cannot be split")
    return [
        dataclasses.replace(
            unit,
            name=f"{windows_folder(unit.name)}/{number}",
            window=window,
            key={**unit.key, "window": dataclasses.asdict(window)},
        )
        for number, window in enumerate(plan_windows(unit.frames, count))
    ]
