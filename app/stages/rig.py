"""Views of a rig brought into one world, as a stage."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.result.amend import amend
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.metric_scale import MetricScale
from stream_recon.app.result.run_record import METRIC_SCALE, RIG
from stream_recon.app.run.options import RunOptions
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
    def of_result(cls, result: ResultFolder) -> "RigStage | None":
        """The stage where a result needs it. Raises OutputError."""
        return None if result.rig is None or RIG in result.run else cls()

    def is_done(self, context: StageContext) -> bool:
        return RIG in context.result.run

    def run(self, context: StageContext) -> Sequence[str]:
        from stream_recon.app.stages.refinement_input import rig_frames
        from stream_recon.app.stages.refinement_output import revision_to

        result = context.result
        frames = rig_frames(result, result.cameras)
        assert frames is not None
        lines, record = list[str](), dict[str, Any]()
        if not frames.rig.is_central:
            scales, error = _measured(context, result)
            frames, how = replace(frames, scales=scales), "the distance of its cameras"
            given = str(result.run.get("options", {}).get("rig", RIG))
            unit = MetricScale(Similarity.of_scale(scales[0]), error, given, how)
            record[METRIC_SCALE] = unit.to_json()
            lines.append(f"in metres (error about {100 * error:.2g} %), by {how}")
        T, scale = frames.aligned(np.array([camera.T_world_camera for camera in result.cameras]), frames.scales)
        revision = revision_to(result.cameras, T, scale, None)
        if context.view:
            context.view.revise(revision)
        record[RIG] = {"scales": [float(np.median(scale[frames.view == view])) for view in range(len(frames.rig))]}
        amend(result, revision, record, None, context.progress("points"))
        return lines


def _measured(context: StageContext, result: ResultFolder) -> tuple[tuple[float, ...], float]:
    """The scale of a rig whose cameras are apart. Raises InputError."""
    from stream_recon.app.metric_scale.rig import measure_stereo_scale
    from stream_recon.app.stages.refinement_input import images_of, rig_frames

    cameras = result.with_depth(result.cameras)
    images, frames = images_of(result, cameras, context.open_again), rig_frames(result, cameras)
    assert frames is not None
    k, factor = cameras[0].intrinsics, images.scale.factor
    model = CameraModel(float(np.sqrt(k.fx * k.fy)) * factor, images.scale.size[0] / 2, images.scale.size[1] / 2)
    return measure_stereo_scale(images, frames, model)
