"""Localization of the frames of a rig: one pose of its body by what all views show."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np

from stream_recon.app.core.rig import VIEW_STRIDE, Rig
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import Frame, Intrinsics
from stream_recon.app.localization.localize import (
    Localization,
    LocalizationMap,
    LocatedImage,
    NotLocalized,
    scaled_camera,
)
from stream_recon.app.localization.pose import Correspondences, fit_pose
from stream_recon.app.slam.frame_data import Scale
from stream_recon.app.sources.preprocess import reduced_image

KEPT_SIDE = 128
"""Longer side of the pictures that are kept until all views have been seen."""
AGREEING = 0.6
"""Share of the matches of all located views that agree with one pose of the body; below, they show different places."""


@dataclass
class _Moment:
    frame: Frame
    """Of the first view, with a small picture."""
    why_not: list[str] = field(default_factory=list)
    located: list[tuple[int, LocatedImage]] = field(default_factory=list)
    """Views that show the place, by number."""


class RigLocalizer:
    """Localizes the frames of a rig, whose views come one after the other."""

    def __init__(self, place: LocalizationMap, rig: Rig) -> None:
        """``rig``: in the unit of the place."""
        self._place, self._T_view_body = place, invert_pose(rig.T_body_view)
        self._moments = dict[int, _Moment]()
        self._scale = Scale(1.0, (1, 1))

    def push(self, frame: Frame, intrinsics: Intrinsics) -> None:
        """Take in one view of a frame. ``intrinsics``: in its pixels, the same of all views."""
        view, number = divmod(frame.index, VIEW_STRIDE)
        small = replace(frame, index=number, rgb=reduced_image(frame.rgb, KEPT_SIDE), mask=None)
        moment = self._moments.setdefault(number, _Moment(small))
        self._scale = scale = Scale.from_source_size((frame.rgb.shape[1], frame.rgb.shape[0]))
        self._camera = scaled_camera(intrinsics, scale)
        found = self._place.find(scale.grey(frame.rgb), scale, self._camera)
        if isinstance(found, NotLocalized):
            moment.why_not.append(found.reason)
        else:
            moment.located.append((view, found))

    def located(self) -> Iterator[tuple[Frame, Localization | NotLocalized]]:
        """Each frame with the pose of the body, which is that of the first view."""
        for _, moment in sorted(self._moments.items()):
            yield moment.frame, self._one_pose(moment)

    def _one_pose(self, moment: _Moment) -> Localization | NotLocalized:
        if not moment.located:
            return NotLocalized(moment.why_not[0])
        config, scale = self._place.config, self._scale
        matched = reduce(Correspondences.with_more, (_of_view(found.matched, view) for view, found in moment.located))
        T = np.concatenate([np.tile(self._T_view_body[view], (len(f.matched), 1, 1)) for view, f in moment.located])
        starts = [found.fit.T_world_camera @ self._T_view_body[view] for view, found in moment.located]
        fits = [fit_pose(matched, start, self._camera, None, config.pose, T) for start in starts]
        fit = max(fits, key=lambda each: len(each.inliers))
        if len(fit.inliers) < AGREEING * len(matched):
            return NotLocalized("its views show different places")
        frames = dict.fromkeys(frame for _, found in moment.located for frame in found.frames)
        located = LocatedImage(fit, matched.take(fit.inliers), tuple(frames))
        reason = located.why_uncertain(config.image)
        return NotLocalized(reason) if reason else located.localization(scale)


def _of_view(matched: Correspondences, view: int) -> Correspondences:
    """Matches whose features have other numbers than those of other views."""
    return replace(matched, feature=matched.feature + view * VIEW_STRIDE)
