"""Offline refinement as a stage, and what it tells the user."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stream_recon.app.core.types import KeptPoses
from stream_recon.app.datasets.known_poses import read_known_poses
from stream_recon.app.metric_scale.known_poses import fit_known_poses
from stream_recon.app.metric_scale.scale_source import parse_poses
from stream_recon.app.result.disk_limit import bytes_without
from stream_recon.app.result.feature_map import MAP_NAME, remove_map
from stream_recon.app.result.run_record import REFINEMENT
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.stage import Stage, StageContext

if TYPE_CHECKING:
    from stream_recon.app.slam.offline.report import RefinementReport


OWNERS: Mapping[str, str] = {
    KeptPoses.NETWORK: "the network's",
    KeptPoses.STREAM: "the stream's",
    KeptPoses.GIVEN: "the given",
}
"""Whose poses frames keep that are not refined."""


@dataclass(frozen=True)
class RefineStage(Stage):
    """Refinement of the whole result by bundle adjustment."""

    name = "refine"
    absent = "not refined"
    stopped = "refinement stopped: the result is complete but not refined; 'stream-recon refine' refines it"
    keep_map: bool = True
    """Leave the features by which the place is recognized."""
    poses: str | None = None
    """Known poses, see `parse_poses`."""

    @classmethod
    def of(cls, options: RunOptions) -> "RefineStage | None":
        return RefineStage(options.keep_map, options.poses) if options.mapping == "full" else None

    def check(self) -> None:
        if self.poses is not None:
            read_known_poses(parse_poses(self.poses).path)

    def is_done(self, context: StageContext) -> bool:
        return REFINEMENT in context.result.run

    def why_not(self, context: StageContext) -> str | None:
        result = context.result
        if context.open_again is None and not result.with_depth(result.cameras):
            return "no depth was kept"
        return None

    def run(self, context: StageContext) -> Sequence[str]:
        # Heavy: a run imports the stages before its first frame.
        from stream_recon.app.stages.refinement import write_refinement
        from stream_recon.app.stages.refinement_input import STORED_IMAGES

        known = None
        if self.poses is not None and (choice := parse_poses(self.poses)).use != "scale":
            known = fit_known_poses(context.result, choice)
            context.observer.on_message(known.how)
        report = write_refinement(context, keep_map=self.keep_map, known=known)
        _bound_map(context)
        if context.open_again is None:
            context.observer.on_message(STORED_IMAGES, warning=True)
        unit = context.result.metric_scale  # that of a rig, whose error is measured again
        error = [] if unit is None or unit.error is None else [f"metres: error about {100 * unit.error:.2g} %"]
        return [*described(report), *error]


def _bound_map(context: StageContext) -> None:
    """Remove the map of features where it exceeds the bound of the result's size."""
    path = context.folder / MAP_NAME
    if context.max_bytes is None or not path.exists():
        return
    if path.stat().st_size + bytes_without(context.folder, MAP_NAME) > context.max_bytes:
        remove_map(context.folder)
        context.observer.on_message("no map of features: it would exceed --max-disk")


def _lens(report: "RefinementReport") -> str:
    """The field of view of a refinement, and its camera model where that bends lines."""
    model = report.lens or ""
    terms = ", ".join(f"{value:.3f}" for value in (report.k1, report.k2) if value)
    bent = f", {'fish-eye lens' if 'FISHEYE' in model else 'radial distortion'} ({terms})" if "RADIAL" in model else ""
    unknown = " (not measured)" if report.field_of_view_measured is False else ""
    return f"field of view {report.field_of_view_deg or 0.0:.0f} degrees{unknown}{bent}"


def described(report: "RefinementReport") -> list[str]:
    """Lines on the success of a refinement, and on segments that it left alone."""
    lines = []
    if report.reprojection_px is None:
        reasons = dict.fromkeys(str(segment["why"]) for segment in report.fallback_segments)
        why = ", ".join(reasons) or "no map came out"
        return [
            f"not refined: all frames keep {_kept(next(iter(report.fallback_segments), {}))} and depth, because {why}"
        ]
    if report.focal is not None:
        loops = f", {report.loops} loops" if report.loops else ""
        lines.append(
            f"refined: {report.keyframes} keyframes, {report.pairs_accepted} of {report.pairs_tried} pairs, "
            f"{report.tracks} points{loops}; reprojection error {report.reprojection_px:.2f} px instead of "
            f"{report.reprojection_px_before or 0.0:.2f} px, focal length {report.focal:.0f} px instead of "
            f"{report.focal_before or 0.0:.0f} px, {_lens(report)}; {sum(report.seconds.values()):.1f} s"
        )
    lines += [
        f"the scale may change by a factor of {jump['factor']} at frame {jump['frame']}, where few points tie them"
        for jump in report.scale_jumps
    ]
    return lines + [
        f"frames {segment['first']} to {segment['last']} are not refined and keep {_kept(segment)}, "
        f"because {segment['why']}"
        for segment in report.fallback_segments
    ]


def _kept(segment: Mapping[str, object]) -> str:
    return f"{OWNERS.get(str(segment.get('kept')), OWNERS[KeptPoses.NETWORK])} poses"
