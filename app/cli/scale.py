"""The body of the command ``scale``, and the same at the end of a run. Prints for the user."""

from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from stream_recon.app.cli.console import DONE, INTERRUPTED, PlainConsole
from stream_recon.app.cli.progress import LiveView, says, steps_bar
from stream_recon.app.metric_scale.apply import apply_metric_scale
from stream_recon.app.metric_scale.measure import measure_scale
from stream_recon.app.metric_scale.scale_source import ScaleSource, parse_scale_source
from stream_recon.app.pipeline.process import memory_errors, stop_on_signals
from stream_recon.app.result.folder import ResultFolder, read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.metric_scale import MetricScale, T_current_own
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import InputError


def scale_folder(folder: Path, what: str) -> int:
    """Bring a result to metres. Raises StreamReconError."""
    out, err = PlainConsole(soft_wrap=True), PlainConsole(stderr=True)
    given = parse_scale_source(what)
    return DONE if brought_to_metres(read_result(folder), given, None, out, err) else INTERRUPTED


def brought_to_metres(
    result: ResultFolder,
    given: tuple[ScaleSource, str],
    open_again: Callable[[], Source] | None,
    out: Console,
    err: Console,
    page: LiveView | None = None,
) -> bool:
    """Measure and move, with a progress bar; False where Ctrl-C ended it, which leaves the result as it was.

    Args:
        open_again: the source once more; None: as the result says.
        page: shows it moved, and says by what.

    Raises:
        StreamReconError: likewise.
    """
    say = says(page)
    with steps_bar(err) as show, stop_on_signals() as stop:

        def look(done: int, total: int) -> None:
            if stop.requested:
                raise KeyboardInterrupt
            show("markers", done, total)
            say(f"looking for markers: {done} of {total} frames")

        try:
            with memory_errors(), FolderLock(result.folder):
                metres = measure_scale(result, *given, open_again, look)
                whole = apply_metric_scale(
                    result,
                    metres,
                    lambda done, total: show("points", done, total),
                    lambda: stop.requested,
                    [] if page is None else [page],
                )
        except InputError as error:
            raise InputError(f"{error}; {result.folder} is complete, in the unit that it had") from error
        except KeyboardInterrupt:
            whole = False
    if not whole:
        stopped = "stopped: the result is complete, in the unit that it had; 'stream-recon scale' goes on"
        out.print(stopped)
        say(stopped)
        return False
    line = _described(metres.after(T_current_own(result.run)))
    out.print(line, markup=False)
    say(line)
    return True


def _described(metres: MetricScale) -> str:
    error = "" if metres.error is None else f" (error about {100 * metres.error:.2g} %)"
    scale = metres.T_metric_own.scale
    return f"in metres: the reconstruction's unit is {scale:.5g} m{error}, by {metres.how}"
