"""The result of an earlier run in the output folder, and the state from which a run continues it."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stream_recon.app.core.types import OverlapError
from stream_recon.app.datasets.source_identity import check_source
from stream_recon.app.result.metric_scale import metric_scale_of
from stream_recon.app.result.resume import PartialResult, check_choice, finished_record, read_partial_result
from stream_recon.app.result.run_record import now_text
from stream_recon.app.result.writer import check_output
from stream_recon.app.run.health import low_quality_intervals, recorded_pictures
from stream_recon.app.run.pipeline import ResumeState
from stream_recon.app.sources.readers import FrameRange
from stream_recon.app.sources.source import Source
from stream_recon.configs.errors import ConfigError


@dataclass(frozen=True)
class EarlierRun:
    """Result in the output folder that ``--resume`` continues; at most one of the two is set."""

    record: Mapping[str, Any] | None = None
    """The ``run.json`` of a result with all its frames."""
    partial: PartialResult | None = None

    @staticmethod
    def find(folder: Path, *, resume: bool, overwrite: bool) -> "EarlierRun":
        """The result to continue; none without ``resume``. Raises OutputError where the folder has other content."""
        record = finished_record(folder) if resume else None
        partial = read_partial_result(folder) if resume and record is None else None
        if record is None and partial is None:
            # A run that was interrupted before its first result has left nothing to lose.
            check_output(folder, overwrite or resume)
        return EarlierRun(record, partial)

    def check(
        self, folder: Path, source: Source, recorded: Mapping[str, Any], open_again: Callable[[], Source]
    ) -> None:
        """Raises StreamReconError unless the source and the options ``recorded`` are those of the result."""
        if (self.record or self.partial) and source.live:
            raise ConfigError("--resume needs a file: a camera or stream cannot be read again")
        if self.record is not None:
            check_choice(folder, self.record, source.name, recorded)
        elif self.partial is not None:
            check_source(folder, self.partial.cameras, open_again)


def resume_state(partial: PartialResult, overlap_error: OverlapError) -> ResumeState:
    """State from which the pipeline goes on; ``overlap_error``: of the frames that the engine got again."""
    seconds = partial.recorded_value("timings", dict).get("seconds", 0.0)
    return ResumeState(
        frames=len(partial.cameras),
        keyframes=partial.keyframes,
        seconds=float(seconds) if isinstance(seconds, int | float) else 0.0,
        warnings=(*(str(line) for line in partial.recorded_value("warnings", list)), *_dropped_scale(partial)),
        resumed=(*partial.recorded_value("resumed", list), {"at": now_text(), **dataclasses.asdict(overlap_error)}),
        low_quality=tuple(low_quality_intervals(partial.recorded_value("health", dict))),
        pictures=recorded_pictures(partial.record),
        segments=tuple(_segments(partial)),
        blank_frames=_count(partial.recorded_value("frames", dict).get("blank")),
        last=partial.last_frame(),
    )


def _dropped_scale(partial: PartialResult) -> list[str]:
    unit = metric_scale_of(partial.record)
    again = "the resumed run is in its own unit again; run 'stream-recon scale' at its end"
    return [] if unit is None else [f"the interrupted result was in metres, by {unit.given}: {again}"]


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _segments(partial: PartialResult) -> Iterator[FrameRange]:
    """Segments up to the last finished frame; damaged entries are skipped."""
    for entry in partial.recorded_value("segments", list):
        with suppress(TypeError):
            segment = FrameRange(**entry)
            if isinstance(segment.index, int) and segment.index <= partial.last.index:
                yield segment
