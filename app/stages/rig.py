"""Views of a rig brought into one world, as a stage."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stream_recon.app.result.amend import amend
from stream_recon.app.result.run_record import RIG
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.refinement_input import rig_frames
from stream_recon.app.stages.refinement_output import revision_to
from stream_recon.app.stages.stage import Stage, StageContext


@dataclass(frozen=True)
class RigStage(Stage):
    """One pose for all views of a frame. The network saw each view in a world and scale of its own."""

    name = "rig"
    stopped = "stopped: the views are not in one world yet; --resume goes on"

    @classmethod
    def of(cls, options: RunOptions) -> None:
        return None

    @classmethod
    def of_result(cls, context: StageContext) -> "RigStage | None":
        """The stage where a result needs it. Raises OutputError."""
        stage = cls()
        return None if context.result.rig is None or stage.is_done(context) else stage

    def is_done(self, context: StageContext) -> bool:
        return RIG in context.result.run

    def run(self, context: StageContext) -> Sequence[str]:
        result = context.result
        frames = rig_frames(result, result.cameras)
        assert frames is not None
        T, scale = frames.aligned(np.array([camera.T_world_camera for camera in result.cameras]))
        revision = revision_to(result.cameras, T, scale, None)
        if context.view:
            context.view.revise(revision)
        scales = [round(float(np.median(scale[frames.view == view])), 4) for view in range(len(frames.rig))]
        record = {RIG: {"scales": scales}}
        amend(result, revision, record, None, context.progress("points"), context.cancel)
        return []
