"""Resume of an interrupted run: source and engine are brought to the last finished frame."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

from stream_recon.app.core.protocols import FrameEngine
from stream_recon.app.core.types import OverlapError
from stream_recon.app.pipeline.health import low_quality_intervals
from stream_recon.app.pipeline.pipeline import ResumeState
from stream_recon.app.pipeline.process import memory_errors
from stream_recon.app.result.resume import PartialResult
from stream_recon.app.result.run_record import now_text
from stream_recon.app.slam.mode import MapState
from stream_recon.app.sources.readers import FrameRange
from stream_recon.app.sources.source import Source


def resume_run(
    unfinished: PartialResult,
    engine: FrameEngine,
    source: Source,
    open_again: Callable[[], Source],
    stack: ExitStack,
    *,
    network_poses: bool,
) -> tuple[Source, ResumeState]:
    """The source at the next frame, and the state of the interrupted run for `reconstruct`.

    Args:
        engine: after `reset`; it continues in the coordinate frame of the interrupted run.
        source: at its first frame. Where it cannot seek, the source that ``open_again`` opens is read up to the next
            frame, and ``stack`` closes it.
        network_poses: continue from the network's own poses, since a back end follows; else from those of the result.

    Raises:
        StreamReconError: the source cannot be read, a depth file is damaged, or memory is exhausted.
    """
    last, count = unfinished.last, len(unfinished.cameras)
    if not source.resume(last.index, last.timestamp, count):
        source = stack.enter_context(open_again())
        source.resume_by_reading(last.index, count)
    stream = engine.preset.stream
    remembered = max(stream.window, stream.camera_window)
    first, later = unfinished.last_submap(stream.scale_frames, remembered, network_poses=network_poses)
    with memory_errors():
        overlap_error = engine.resume(first, later)
    return source, _resume_state(unfinished, overlap_error)


def map_state(unfinished: PartialResult) -> MapState:
    """State of the map at the last finished frame."""
    last, network = unfinished.last, unfinished.last.as_network
    return MapState(
        last.T_world_camera,
        network.T_world_camera,
        last.depth_scale / network.depth_scale,
        last.intrinsics.fx,
        last.segment,
    )


def _resume_state(unfinished: PartialResult, overlap_error: OverlapError) -> ResumeState:
    seconds = unfinished.recorded_value("timings", dict).get("seconds", 0.0)
    return ResumeState(
        frames=len(unfinished.cameras),
        keyframes=unfinished.keyframes,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        warnings=tuple(str(line) for line in unfinished.recorded_value("warnings", list)),
        resumed=(*unfinished.recorded_value("resumed", list), {"at": now_text(), **dataclasses.asdict(overlap_error)}),
        health=tuple(camera.health for camera in unfinished.cameras if camera.health is not None),
        low_quality=tuple(low_quality_intervals(unfinished.recorded_value("health", dict))),
        segments=tuple(_segments(unfinished)),
        blank_frames=_count(unfinished.recorded_value("frames", dict).get("blank")),
        last=unfinished.last_frame(),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _segments(unfinished: PartialResult) -> Iterator[FrameRange]:
    """Segments up to the last finished frame; damaged entries are skipped."""
    for entry in unfinished.recorded_value("segments", list):
        with suppress(TypeError):
            segment = FrameRange(**entry)
            if isinstance(segment.index, int) and segment.index <= unfinished.last.index:
                yield segment
