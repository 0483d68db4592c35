"""Going on with a run that was cut off: source and engine brought to where its folder ends."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

from stream_recon.app.core.protocols import FrameEngine
from stream_recon.app.core.types import OverlapError
from stream_recon.app.pipeline.health import weak_spans
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
    """The source at the frame that comes next, and what to tell `reconstruct` of the run so far.

    Args:
        engine: as after `reset`; its world is the run's from here on.
        source: of which no frame was taken yet. Where it cannot be entered in the middle, another one is read up to
            there, by ``open_again``, which ``stack`` closes.
        network_poses: the engine continues in the network's world, since a back end follows it; else in the result's.

    Raises:
        StreamReconError: the source cannot be read, or a depth file is damaged; no memory.
    """
    last, taken = unfinished.last, len(unfinished.cameras)
    if not source.resume(last.index, last.timestamp, taken):
        source = stack.enter_context(open_again())
        source.resume_by_reading(last.index, taken)
    stream = engine.preset.stream
    remembered = max(stream.window, stream.camera_window)
    first, later = unfinished.last_submap(stream.scale_frames, remembered, network_poses=network_poses)
    with memory_errors():
        seam = engine.resume(first, later)
    return source, _before(unfinished, seam)


def map_state(unfinished: PartialResult) -> MapState:
    """Where the geometry goes on that the run had."""
    last, network = unfinished.last, unfinished.last.as_network
    return MapState(
        last.T_world_camera,
        network.T_world_camera,
        last.depth_scale / network.depth_scale,
        last.intrinsics.fx,
        last.segment,
    )


def _before(unfinished: PartialResult, seam: OverlapError) -> ResumeState:
    seconds = unfinished.recorded_value("timings", dict).get("seconds", 0.0)
    return ResumeState(
        frames=len(unfinished.cameras),
        keyframes=unfinished.keyframes,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        warnings=tuple(str(line) for line in unfinished.recorded_value("warnings", list)),
        resumed=(*unfinished.recorded_value("resumed", list), {"at": now_text(), **dataclasses.asdict(seam)}),
        health=tuple(camera.health for camera in unfinished.cameras if camera.health is not None),
        weak=tuple(weak_spans(unfinished.recorded_value("health", dict))),
        segments=tuple(_segments(unfinished)),
        blank_frames=_count(unfinished.recorded_value("frames", dict).get("blank")),
        last=unfinished.last_frame(),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _segments(unfinished: PartialResult) -> Iterator[FrameRange]:
    """Those that a frame belongs to; what a damaged record says is left out."""
    for told in unfinished.recorded_value("segments", list):
        with suppress(TypeError):
            segment = FrameRange(**told)
            if isinstance(segment.index, int) and segment.index <= unfinished.last.index:
                yield segment
