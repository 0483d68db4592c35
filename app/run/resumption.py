"""Going on with a run that was cut off: source and engine brought to where its folder ends."""

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack

from stream_recon.app.engine_protocol import FrameEngine
from stream_recon.app.output.run_record import now_text
from stream_recon.app.output.unfinished import Unfinished
from stream_recon.app.results import Seam
from stream_recon.app.run.health import weak_spans
from stream_recon.app.run.pipeline import Before
from stream_recon.app.run.process_memory import memory_errors
from stream_recon.app.video.sources import Source


def go_on(
    unfinished: Unfinished, engine: FrameEngine, source: Source, open_again: Callable[[], Source], stack: ExitStack
) -> tuple[Source, Before]:
    """The source at the frame that comes next, and what to tell `reconstruct` of the run so far.

    Args:
        engine: as after `reset`; its world is the run's from here on.
        source: of which no frame was taken yet. Where it cannot be entered in the middle, another one is read up to
            there, by ``open_again``, which ``stack`` closes.

    Raises:
        StreamReconError: the source cannot be read, or a depth file is damaged; no memory.
    """
    last, taken = unfinished.last, len(unfinished.cameras)
    if not source.resume(last.index, last.timestamp, taken):
        source = stack.enter_context(open_again())
        source.resume_slowly(last.index, taken)
    with memory_errors():
        seam = engine.resume(unfinished.latest_keyframes(engine.preset.stream.scale_frames))
    return source, _before(unfinished, seam)


def _before(unfinished: Unfinished, seam: Seam) -> Before:
    seconds = unfinished.told("timings", dict).get("seconds", 0.0)
    return Before(
        frames=len(unfinished.cameras),
        keyframes=unfinished.keyframes,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        warnings=tuple(str(line) for line in unfinished.told("warnings", list)),
        resumed=(*unfinished.told("resumed", list), {"at": now_text(), **dataclasses.asdict(seam)}),
        health=tuple(camera.health for camera in unfinished.cameras if camera.health is not None),
        weak=tuple(weak_spans(unfinished.told("health", dict))),
    )
