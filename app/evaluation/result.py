"""Errors of a result folder against the truth: what `Evaluator` tells of a run, without running anything again."""

from stream_recon.app.core.ground_truth import GroundTruth
from stream_recon.app.core.types import FrameRevision, Revision
from stream_recon.app.evaluation.gather import Evaluator
from stream_recon.app.evaluation.pixel_sample import MAX_PIXELS
from stream_recon.app.result.cameras import Camera
from stream_recon.app.result.folder import ResultFolder, causal_result


def gather_result(result: ResultFolder, truth: GroundTruth | None, max_pixels: int = MAX_PIXELS) -> Evaluator:
    """A gatherer that has heard a finished (or interrupted) result, as first given out and as last known.

    Poses and cameras are exact; depth was rounded to float16 in its files, which moves AbsRel by some 1e-5. ``truth``
    goes by the indices of the frames in their source, so a result of every n-th frame fits as it is.

    Raises:
        OutputError: a damaged result.
    """
    evaluator = Evaluator(truth, max_pixels=max_pixels)
    for camera in result.cameras:
        evaluator.add(causal_result(result.folder, camera))
    evaluator.revise(last_known(result.cameras))
    return evaluator


def last_known(cameras: list[Camera]) -> Revision:
    """All frames of a result as one revision: what became of them since they were first given out."""
    return Revision(
        tuple(FrameRevision(c.index, c.T_world_camera, c.depth_scale, c.intrinsics, c.depth_field) for c in cameras),
    )
