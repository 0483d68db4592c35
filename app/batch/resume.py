"""What a batch that was cut off left of a scene in its working folder."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.batch.manifest import remove_result
from stream_recon.app.evaluation.gather import Evaluator
from stream_recon.app.evaluation.result import last_known
from stream_recon.app.result.folder import ResultFolder, read_result, read_run, result_as_first_given
from stream_recon.app.result.resume import PartialResult, read_unfinished
from stream_recon.app.result.run_record import RUN_NAME, RunInfo, RunSummary
from stream_recon.configs.errors import StreamReconError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartialScene:
    """At most one of the two is there."""

    gatherer: Evaluator
    """Has heard what was reconstructed."""
    unfinished: PartialResult | None = None
    """Frames after which a run goes on."""
    whole: ResultFolder | None = None
    """All frames; it was about to be refined, or published."""

    @property
    def is_refined(self) -> bool:
        return self.whole is not None and "mapping" in self.whole.run

    def summary(self) -> RunSummary:
        """What a batch needs of a whole run, as its ``run.json`` has it."""
        assert self.whole is not None
        counts = self.whole.run["frames"]
        return RunSummary(
            interrupted=False,
            frames_read=counts["read"],
            frames_reconstructed=counts["reconstructed"],
            keyframes=counts["keyframes"],
            frames_damaged=counts["damaged"],
            warnings=tuple(self.whole.run["warnings"]),
        )


def left_behind(work: Path, info: RunInfo, new_gatherer: Callable[[], Evaluator]) -> PartialScene:
    """What is in a working folder; what cannot be gone on with is removed from it.

    Raises:
        OutputError: it cannot be removed.
    """
    try:
        left = _read(work, info, new_gatherer())
    except StreamReconError as error:
        logger.info("%s: from the beginning", error)
        left = None
    if left is None:
        remove_result(work, keep_folder=True)
        return PartialScene(new_gatherer())
    return left


def _read(work: Path, info: RunInfo, gatherer: Evaluator) -> PartialScene | None:
    if not (work / RUN_NAME).exists():
        return None
    result: PartialResult | ResultFolder | None
    result = read_unfinished(work) if read_run(work)["interrupted"] else read_result(work)
    if result is None:
        return None
    for camera in result.cameras:
        gatherer.add(result_as_first_given(work, camera))
    if isinstance(result, PartialResult):
        result.check(info)
        return PartialScene(gatherer, unfinished=result)
    left = PartialScene(gatherer, whole=result)
    if left.is_refined:
        gatherer.revise(last_known(result.cameras))
    return left
