"""A scene's result brought to metres before it is published."""

from functools import partial
from pathlib import Path
from typing import Any

from stream_recon.app.batch.jobs import Job, JobInterruptedError
from stream_recon.app.metric_scale.apply import bring_to_metres
from stream_recon.app.metric_scale.measure import measured
from stream_recon.app.metric_scale.scale_source import parse_given
from stream_recon.app.pipeline.interrupts import stop_on_signals
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.unit import own_to_now
from stream_recon.configs.errors import InputError


def scene_in_metres(unit: Job, scale_from: str, folder: Path) -> dict[str, Any]:
    """What the manifest records of it: ``metres``: ``scale`` and ``error`` as in ``run.json``, or, where nothing
    of the kind is seen in this scene, ``reason``; it then stays in its own unit.

    Raises:
        UnitInterruptedError: Ctrl-C came meanwhile.
        StreamReconError: a file cannot be read or written.
    """
    open_again = partial(unit.scene.open, unit.choice.stride, unit.choice.max_frames)
    with stop_on_signals() as stop:

        def look(done: int, total: int) -> None:
            if stop.requested:
                raise JobInterruptedError

        result = read_result(folder)
        try:
            metres = measured(result, *parse_given(scale_from), open_again, look)
        except InputError as error:
            return {"metres": {"reason": str(error)}}
        if not bring_to_metres(result, metres, cancelled=lambda: stop.requested):
            raise JobInterruptedError
        whole = metres.after(own_to_now(result.run))
    return {"metres": {"scale": whole.own_to_metres.scale, "error": whole.error}}
