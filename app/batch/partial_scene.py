"""Result of an interrupted batch in a working folder: to be resumed, or all frames of a scene."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stream_recon.app.batch.manifest import remove_result
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.result.folder import ResultFolder, read_result, read_run, result_of
from stream_recon.app.result.resume import PartialResult, read_partial_result
from stream_recon.app.result.run_record import REFINEMENT, RUN_NAME, RunInfo, RunSummary
from stream_recon.configs.errors import StreamReconError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PartialScene:
    """Result of an interrupted batch in a working folder. At most one of ``unfinished`` and ``complete`` is set."""

    evaluator: Evaluator
    """Has received the frames of that result."""
    unfinished: PartialResult | None = None
    complete: ResultFolder | None = None
    """Result of all frames, to be refined or published."""

    @property
    def is_refined(self) -> bool:
        return self.complete is not None and REFINEMENT in self.complete.run

    def summary(self) -> RunSummary:
        """The part of the complete run's summary that a batch needs, from its ``run.json``."""
        assert self.complete is not None
        counts = self.complete.run["frames"]
        return RunSummary(
            interrupted=False,
            frames_read=counts["read"],
            frames_reconstructed=counts["reconstructed"],
            keyframes=counts["keyframes"],
            frames_damaged=counts["damaged"],
            warnings=tuple(self.complete.run["warnings"]),
        )


def read_partial_scene(work: Path, info: RunInfo, new_evaluator: Callable[[], Evaluator]) -> PartialScene:
    """Read the result in a working folder; what cannot be resumed is removed. Raises OutputError."""
    try:
        scene = _read_result(work, info, new_evaluator())
    except StreamReconError as error:
        logger.info("%s: starting from the first frame", error)
        scene = None
    if scene is None:
        remove_result(work, keep_folder=True)
        return PartialScene(new_evaluator())
    return scene


def _read_result(work: Path, info: RunInfo, evaluator: Evaluator) -> PartialScene | None:
    if not (work / RUN_NAME).exists():
        return None
    result = read_partial_result(work) if read_run(work)["interrupted"] else read_result(work)
    if result is None or (isinstance(result, PartialResult) and result.is_torn):
        return None  # a scene of a batch is cheap to begin anew
    for camera in result.cameras:
        evaluator.add(result_of(work, camera.as_causal))
    if isinstance(result, PartialResult):
        result.check(info)
        return PartialScene(evaluator, unfinished=result)
    scene = PartialScene(evaluator, complete=result)
    if scene.is_refined:
        evaluator.revise(result.revision_since_causal)
    return scene
