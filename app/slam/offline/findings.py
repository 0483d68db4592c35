"""What the stages of a refinement found, and the report on it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.depth_correction import GRID
from stream_recon.app.core.types import KeptPoses
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.evidence.judgement import Selection, runs
from stream_recon.app.slam.frame_data import Scale
from stream_recon.app.slam.matching.covisibility import PairMatches
from stream_recon.app.slam.offline.attempts import Attempt
from stream_recon.app.slam.offline.depth_fields import DepthFields, interpolate_fields
from stream_recon.app.slam.offline.held_out_test import Judgement
from stream_recon.app.slam.offline.keyframe_matching import VideoData
from stream_recon.app.slam.offline.path_error import PathError
from stream_recon.app.slam.offline.report import InitialPoses, Refinement, RefinementReport
from stream_recon.app.slam.offline.second_pass import SecondPass


@dataclass(frozen=True)
class RefinedFrames:
    """Poses and depth of all frames."""

    T_world_camera: FloatArray  # [N, 4, 4]
    depth_scale: FloatArray  # [N]
    fields: DepthFields
    """Of the keyframes."""
    scale_jumps: list[tuple[int, float]]
    """Keyframes at which the scale changes, and the factor."""


@dataclass(frozen=True)
class Findings:
    """Results of the stages so far; None of those to come."""

    data: VideoData
    matches: PairMatches | None = None
    attempt: Attempt | None = None
    path_error: PathError | None = None
    selection: Selection | None = None
    """Keyframes that fall back to the network."""
    second: SecondPass | None = None
    frames: RefinedFrames | None = None
    unchanged: str = ""
    """Why the poses are not refined; empty where they are."""
    online: InitialPoses | None = None
    """Online poses of all frames."""
    is_given: bool = False
    """The frames' poses are known ones in place of the network's."""

    @property
    def keeps_stream(self) -> bool:
        """Whether poses that are not refined are the online ones, as without evidence: the stream ended with them."""
        selection = self.selection
        is_open = selection is None or not selection.fallback.all()
        return self.online is not None and (is_open or (selection is not None and selection.keeps_stream()))

    def refinement(
        self, start: VideoData, camera_model: CameraModel, scale: Scale, report: RefinementReport
    ) -> Refinement:
        """The refinement; poses and depth of the ``start`` and the network's camera where it did not succeed."""
        data, count = self.data, len(self.data.views)
        described = [features.described for features in data.features]
        if self.unchanged or self.frames is None or self.second is None or self.attempt is None:
            T, factor, none = start.T_network, start.segment_scale, np.zeros((count, GRID, GRID), np.float16)
            if self.online is not None and self.keeps_stream:
                T, factor = self.online.T_world_camera, factor * self.online.depth_scale
                camera_model = replace(camera_model, focal=self.online.focal)
            return Refinement(T, factor, camera_model, scale, data.keyframes, None, [], report, none, described)
        fit, frames = self.second.fit, self.frames
        fields = interpolate_fields(frames.fields.nodes, data.keyframes, data.segment)
        return Refinement(
            frames.T_world_camera,
            frames.depth_scale,
            fit.scene.camera_model,
            scale,
            data.keyframes,
            fit,
            sorted(self.attempt.matches.loops),
            report,
            fields,
            described,
        )


def report_on(
    findings: Findings, camera_model: CameraModel, scale: Scale, seconds: Mapping[str, float], max_focal_error: float
) -> RefinementReport:
    """Report of a refinement.

    Args:
        camera_model: the network's, in working pixels.
        seconds: of each stage.
        max_focal_error: relative error of the focal length up to which it counts as measured.
    """
    data = findings.data
    figures: dict[str, object] = {
        "keyframes": len(data.keyframes),
        "features": sum(len(features) for features in data.features),
        "learned_matches": True if data.learned else False if data.lacks_learned else None,
        "segments": len(np.unique(data.keyframe_segment)) if findings.matches is not None else 1,
        "focal_before": camera_model.focal / scale.factor,
        "fallback_segments": fallback_segments(findings),
        "seconds": dict(seconds),
    }
    matches = findings.attempt.matches if findings.attempt else findings.matches
    if matches is not None:
        figures |= {"pairs_tried": matches.tried, "pairs_accepted": len(matches.matches), "loops": len(matches.loops)}
    if findings.attempt is not None:
        figures |= {
            "start": findings.attempt.candidate.start,
            "reprojection_px_before": findings.attempt.before_px,
            "network_turn_error_deg": findings.attempt.turn_error_deg,
            "path_error": findings.path_error and findings.path_error.random,
            "path_difference": findings.attempt.path_difference,
        }
        if findings.selection is not None:
            figures |= _judged(findings.attempt.judgement)
    if findings.second is not None:
        error = findings.second.focal_error
        figures |= {"scale_correction": round(findings.second.scale_correction, 3), "focal_error": error}
        if not findings.second.known_intrinsics:
            figures["field_of_view_measured"] = error is not None and error <= max_focal_error
    if findings.second is not None and findings.frames is not None:
        figures |= _mapped(findings.second, findings.frames, data, scale)
    return RefinementReport(**figures)  # type: ignore[arg-type]


def _judged(judgement: Judgement) -> dict[str, object]:
    network, mapped, evidence = judgement.network, judgement.mapped, judgement.evidence
    before, after = (float(share.mean()) for share in judgement.agreement)
    return {
        "disagreement_before": network.mean,
        "disagreement": mapped.mean,
        "line_disagreement_before": network.by_lines,
        "line_disagreement": mapped.by_lines,
        "depth_agreement_before": before,
        "depth_agreement": after,
        "decided_by_matches": evidence.lines_only,
        "evidence": float(evidence.total.mean()),
        "evidence_error": evidence.standard_error(len(evidence.total)),
    }


def _mapped(second: SecondPass, frames: RefinedFrames, data: VideoData, scale: Scale) -> dict[str, object]:
    fit, camera_model = second.fit, second.fit.scene.camera_model
    return {
        "tracks": len(fit.scene.points),
        "observations": len(fit.observations),
        "reprojection_px": float(np.median(fit.errors)) if len(fit.errors) else None,
        "focal": camera_model.focal / scale.factor,
        "k1": camera_model.k1,
        "k2": camera_model.k2,
        "lens": camera_model.straightened(scale.size).colmap_model,
        "field_of_view_deg": camera_model.field_of_view_deg(scale.size[0]),
        "scale_jumps": [
            {"frame": data.views[data.keyframes[k]].index, "factor": round(factor, 3)}
            for k, factor in frames.scale_jumps
        ],
        "depth_fields": int(frames.fields.kept.sum()),
        "depth_error_before": frames.fields.error_before,
        "depth_error": frames.fields.error,
    }


def fallback_segments(findings: Findings) -> list[dict[str, object]]:
    """First and last frame of the segments that are not refined, why, and whose poses they keep."""
    views, keyframes, selection = findings.data.views, findings.data.keyframes, findings.selection

    def segment(first: int, last: int, why: str, cause: str | None, is_stream: bool) -> dict[str, object]:
        kept = KeptPoses.STREAM if is_stream else KeptPoses.GIVEN if findings.is_given else KeptPoses.NETWORK
        ends = {"first": views[first].index, "last": views[last].index, "frames": last - first + 1}
        return {**ends, "why": why, "cause": cause, "kept": kept}

    if findings.unchanged:
        cause = None if selection is None else selection.cause(0, len(keyframes))
        return [segment(0, len(views) - 1, findings.unchanged, cause, findings.keeps_stream)]
    if selection is None:
        return []
    return [
        segment(
            keyframes[begin],
            keyframes[end - 1],
            selection.reason,
            selection.cause(begin, end),
            selection.keeps_stream(begin, end),
        )
        for begin, end in runs(selection.fallback)
    ]
