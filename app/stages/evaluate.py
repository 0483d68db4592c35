"""Evaluation run: the complete pipeline on a sequence with ground truth, measured while it runs."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.ground_truth import GroundTruth
from stream_recon.app.core.types import FrameEngine, FrameResult, PreparedFrame, Revision
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.evaluation.dense_depth import DenseDepthErrors, dense_depth_errors
from stream_recon.app.evaluation.evaluator import Evaluator
from stream_recon.app.evaluation.scores import Evaluation, baseline_metrics
from stream_recon.app.result.folder import ResultFolder, read_result, result_of
from stream_recon.app.result.run_record import RunInfo
from stream_recon.app.run.listeners import BackEnd, DelegatingBackEnd, Progress, RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.run.session import Output, Session
from stream_recon.app.sources.source import Source
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.stage import StageContext
from stream_recon.configs.errors import InputError

MAX_PIXELS = 64_000_000
"""Ground-truth depths that are compared exactly, in about 1 GB of memory; of more, a random sample."""


class RecordingBackEnd(DelegatingBackEnd):
    """A back end whose input, the network's own results, also goes to an evaluator."""

    def __init__(self, back_end: BackEnd, evaluator: Evaluator) -> None:
        super().__init__(back_end)
        self.evaluator = evaluator

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        self.evaluator.add(result)
        return super().push(result, frame)


class _CheckingObserver(RunObserver):
    """Stops the run at a frame or ground-truth file that cannot be read, and reports the progress to another one."""

    def __init__(self, source: Source, evaluator: Evaluator, shown: RunObserver) -> None:
        self._source, self._evaluator, self._shown = source, evaluator, shown

    def on_progress(self, progress: Progress) -> None:
        self.check()
        self._shown.on_progress(progress)

    def check(self) -> None:
        """Raises InputError."""
        if self._source.damaged:
            reason = f"{self._source.name}: {self._source.warnings[-1]}"
            raise InputError(f"{reason}; an evaluation needs all images to be readable")
        if self._evaluator.truth_error is not None:
            raise InputError(self._evaluator.truth_error)


def evaluate_scene(
    engine: FrameEngine, scene: Scene, options: RunOptions, observer: RunObserver | None = None
) -> Evaluation:
    """Run the pipeline with these options on a sequence, and compare the results with ground truth.

    Raises:
        InputError: an image or a ground-truth file cannot be read: errors of fewer frames would look better.
        Cancelled: Ctrl-C.
    """
    truth = scene.truth()
    evaluator, network_evaluator = (Evaluator(truth, max_pixels=MAX_PIXELS) for _ in range(2))
    options = replace(options, frames=replace(options.frames, camera=scene.camera), mesh=False)
    stride = options.frames.stride
    open_again = partial(scene.open, stride, options.frames.max_frames)
    engine.reset()
    with ExitStack() as stack:
        source = stack.enter_context(open_again())
        output = None
        if options.mapping == "full":
            # On disk, as for users: no sequence has to fit into memory.
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="stream-recon-")))
            known = {"camera": scene.camera} if options.known_intrinsics else {}
            output = Output(folder, RunInfo.from_engine(engine, source.name, known))
        session = stack.enter_context(Session(engine, source, open_again, options, output))
        recording = RecordingBackEnd(session.back_end, network_evaluator) if session.back_end is not None else None
        checking = _CheckingObserver(source, evaluator, observer or RunObserver())
        summary = session.reconstruct([evaluator], checking, recording)
        checking.check()
        if summary.interrupted:
            raise Cancelled
        causal, online_final = evaluator.metrics(causal=True), evaluator.metrics()
        dense_errors = None
        if output is not None:
            has_depth = truth is not None and truth.has_depth
            plan = RunPlan.of(options if has_depth else replace(options, dense_side=None))
            run_stages(plan, StageContext(output.folder, open_again, listeners=[evaluator])).check()
            dense_errors = _dense_errors(output.folder, truth) if truth is not None else None
        network = network_evaluator.metrics() if recording is not None else causal
        final = evaluator.metrics()
    return Evaluation(
        scene.name,
        stride,
        evaluator.frames,
        posed=len(evaluator.true_trajectory()),
        final=final,
        network=network,
        causal=causal,
        online_final=online_final,
        baselines=baseline_metrics(evaluator),
        dense=dense_errors,
    )


def _dense_errors(folder: Path, truth: GroundTruth) -> DenseDepthErrors | None:
    """Errors of the dense depth of a refined result; None where it has none."""
    result = read_result(folder)
    if not result.dense:
        return None
    cameras = [camera for camera in result.cameras if camera.index in result.dense]
    pairs = ((result.surface_of(camera), result_of(folder, camera)) for camera in cameras)
    return dense_depth_errors(pairs, truth)


def evaluate_result(result: ResultFolder, truth: GroundTruth | None) -> Evaluator:
    """An evaluator that has received a complete or partial result, causal and final.

    Depth was rounded to float16 in its files, which changes AbsRel by about 1e-5; poses and cameras are exact.
    ``truth`` is by the frames' indices in their source, so a result of every n-th frame fits.
    Raises OutputError; InputError without frames.
    """
    result.check_frames("evaluate")
    evaluator = Evaluator(truth)
    for camera in result.cameras:
        evaluator.add(result_of(result.folder, camera.as_causal))
    evaluator.revise(result.revision_since_causal)
    return evaluator
