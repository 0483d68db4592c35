"""Keyframes of a video with their features: detection, alignment of segments, and matching."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.ba.problem import FloatArray
from stream_recon.app.slam.frame_data import DepthGrid, DepthOf, FrameData
from stream_recon.app.slam.matching import covisibility, relative_poses
from stream_recon.app.slam.matching.config import DEFAULT_MATCHING, LearnedConfig
from stream_recon.app.slam.matching.features import NO_FEATURES, Features, detect, similarity_matrix
from stream_recon.app.slam.matching.learned import NO_POINTS, LearnedMatcher, LearnedPairs, coverage
from stream_recon.app.slam.matching.matching import Matches
from stream_recon.app.slam.offline import segments
from stream_recon.app.slam.offline.report import InitialPoses
from stream_recon.app.slam.offline.segments import SEGMENTS, SegmentConfig
from stream_recon.app.slam.rig_poses import RigFrames

Grey = NDArray[np.uint8]
GetMatcher = Callable[[], LearnedMatcher | None]
"""Gives the learned matcher; None where it is not installed."""


class Images(Protocol):
    """Source of working images and depth maps."""

    def read(self, positions: Sequence[int]) -> Iterator[tuple[int, Grey, DepthOf]]:
        """Images of frames by ascending position in the result; unreadable frames are left out."""
        ...


@dataclass(frozen=True)
class VideoData:
    """All frames of a video, with the features of its keyframes."""

    views: Sequence[FrameData]
    keyframes: list[int]
    """Positions among all frames, ascending."""
    features: list[Features]
    """Of the keyframes."""
    segment_scale: FloatArray  # [N], of each frame's network lengths, where its segment was aligned with another one
    cross_matches: Mapping[tuple[int, int], Matches] = field(default_factory=dict)
    """Matches between keyframes of different segments that were aligned."""
    rig: RigFrames | None = None
    """Of all frames; None: one camera."""
    learned: LearnedPairs | None = None
    """Learned features of the keyframes, where SIFT hardly ties them."""
    lacks_learned: bool = False
    """SIFT hardly ties them, and there is no learned matcher."""

    @cached_property
    def T_network(self) -> FloatArray:
        """The network's poses [N, 4, 4] of all frames."""
        return np.array([view.T_world_camera for view in self.views])

    @cached_property
    def segment(self) -> NDArray[np.intp]:
        """Segments [N] of all frames."""
        return np.array([view.segment for view in self.views])

    @cached_property
    def keyframe_views(self) -> list[FrameData]:
        return [self.views[k] for k in self.keyframes]

    @property
    def keyframe_grids(self) -> list[DepthGrid]:
        """The network's depth of the keyframes."""
        return [view.grid for view in self.keyframe_views]

    @property
    def T_keyframes(self) -> FloatArray:
        """The network's poses [K, 4, 4] of the keyframes."""
        return np.asarray(self.T_network[self.keyframes])

    @property
    def keyframe_segment(self) -> NDArray[np.intp]:
        """Segments [K] of the keyframes."""
        return np.asarray(self.segment[self.keyframes])

    @cached_property
    def keyframe_rig(self) -> RigFrames | None:
        """The rig of the keyframes; None: one camera."""
        return None if self.rig is None else self.rig.take(self.keyframes)

    @cached_property
    def median_depths(self) -> FloatArray:
        """Median network depth [K] of each keyframe; 1 without depth."""
        depths = [view.grid.pixels()[1] for view in self.keyframe_views]
        return np.array([float(np.median(z)) if len(z) else 1.0 for z in depths])


def detect_features(
    images: Images,
    keyframes: Sequence[int],
    workers: int,
    advance: Callable[[float], None],
    count: int = DEFAULT_MATCHING.features.count,
) -> list[Features]:
    """At most ``count`` features of each keyframe; none for unreadable ones.

    ``advance`` is called with the share that is done.
    """
    index = {position: k for k, position in enumerate(keyframes)}
    features = [NO_FEATURES] * len(keyframes)
    with ThreadPoolExecutor(workers) as pool:
        waiting = []
        for position, grey, depth in images.read(keyframes):
            waiting.append((index[position], pool.submit(lambda image, of: detect(image, of(), count), grey, depth)))
            # Bounds the number of decoded images in memory.
            while len(waiting) > 2 * workers:
                k, future = waiting.pop(0)
                features[k] = future.result()
                advance(k / len(features))
        for k, future in waiting:
            features[k] = future.result()
    return features


def has_weak_neighbours(
    data: VideoData,
    matched: covisibility.PairMatches,
    camera_model: CameraModel,
    config: LearnedConfig = DEFAULT_MATCHING.learned,
) -> bool:
    """Whether matches of many keyframes, with the next one or without order the best, cover little of the image."""
    covered = np.zeros(max(len(data.keyframes) - matched.ordered, 1))
    for (first, second), matches in matched.matches.items():
        if second == first + 1 or not matched.ordered:
            share = coverage(data.features[first].uv[matches[:, 0]], camera_model, config)
            for k in (first,) if matched.ordered else (first, second):
                covered[k] = max(covered[k], share)
    return bool(np.mean(covered < config.weak) >= config.weak_neighbours)


def with_learned_features(data: VideoData, images: Images, matcher: LearnedMatcher) -> VideoData:
    """The video with learned features after the others of each keyframe."""
    index = {position: k for k, position in enumerate(data.keyframes)}
    features, begin = list(data.features), [len(each) for each in data.features]
    points = [NO_POINTS] * len(features)
    for position, grey, depth in images.read(data.keyframes):
        k, found, reader = index[position], matcher.detect(grey), depth()
        if (mask := reader.detection_mask()) is not None:
            column, row = found.uv.astype(np.intp).clip(0, np.array(found.size) - 1).T
            is_free = mask[row, column] > 0
            found = replace(found, uv=found.uv[is_free], descriptors=found.descriptors[is_free])
        uv, z = np.concatenate([features[k].uv, found.uv]), np.concatenate([features[k].z, reader.sample(found.uv)])
        features[k], points[k] = Features(uv, features[k].descriptors, z), found
    return replace(data, features=features, learned=LearnedPairs(matcher, points, begin))


def align_segments(
    data: VideoData, camera_model: CameraModel, workers: int, config: SegmentConfig = SEGMENTS
) -> VideoData:
    """The video with segments merged where matches tie them."""
    if len(np.unique(data.keyframe_segment)) < 2:
        return data
    views, features = data.keyframe_views, data.features
    pairs = covisibility.cross_segment_pairs(views, similarity_matrix(features))
    matches = covisibility.match_pairs(views, features, camera_model, pairs, workers, learned=data.learned).matches
    edges = relative_poses.estimate_relative_poses(data.features, camera_model, matches)
    ties = segments.align(data.T_keyframes, data.keyframe_segment, data.median_depths, edges, matches, config)
    scale = np.array([ties[view.segment][1].scale for view in data.views])
    factors = scale[data.keyframes].tolist()
    aligned = replace(
        data,
        views=[segments.moved(view, ties[view.segment]) for view in data.views],
        features=[f.scaled(factor) for f, factor in zip(data.features, factors, strict=True)],
        segment_scale=scale,
    )
    segment = aligned.keyframe_segment
    return replace(aligned, cross_matches={(i, j): matches[i, j] for i, j in edges if segment[i] == segment[j]})


def align_rig(data: VideoData, rig: RigFrames, online: InitialPoses | None) -> tuple[VideoData, InitialPoses | None]:
    """The video, and its online poses, with the views of a rig in one world."""
    T, scale = rig.aligned(data.T_network, rig.scales)
    moved = [view.moved(pose, float(s)) for view, pose, s in zip(data.views, T, scale, strict=True)]
    if online is not None:
        # Online poses are in metres already, where the scale is measured.
        T, own = rig.aligned(online.T_world_camera, None if rig.scales is None else [1.0] * len(rig.rig))
        online = InitialPoses(T, online.depth_scale * own / scale, online.focal, rig.scales is not None)
    numbers = {view.segment for view in moved}
    return replace(data, views=segments.joined(moved, numbers), segment_scale=scale, rig=rig), online


def match_all_keyframes(
    data: VideoData, camera_model: CameraModel, workers: int, advance: Callable[[float], None]
) -> covisibility.PairMatches:
    """Verified matches of keyframe pairs, without pairs that geometry shows to be wrong."""
    views, features = data.keyframe_views, data.features
    pairs = covisibility.candidate_pairs(views, camera_model, similarity_matrix(features))
    matched = covisibility.match_pairs(views, features, camera_model, pairs, workers, advance, learned=data.learned)
    matched.matches.update(data.cross_matches)
    matched.loops |= data.cross_matches.keys()
    far = {pair: matched.matches[pair] for pair in matched.loops}
    edges = relative_poses.estimate_relative_poses(features, camera_model, far)
    wrong = (far.keys() - edges.keys()) | relative_poses.implausible_edges(data.T_keyframes, edges)
    near = {pair: m for pair, m in matched.matches.items() if pair not in matched.loops}
    wrong |= relative_poses.inconsistent_edges(views, features, camera_model, near)
    for pair in wrong:
        del matched.matches[pair]
    matched.loops -= wrong
    return matched


def match_unordered(
    data: VideoData, camera_model: CameraModel, workers: int, advance: Callable[[float], None]
) -> covisibility.PairMatches:
    """Verified matches of keyframes by their images alone, also across segments, with held-out ones of these pairs."""
    pairs = covisibility.unordered_pairs(similarity_matrix(data.features))
    views, features = data.keyframe_views, data.features
    matched = covisibility.match_pairs(views, features, camera_model, pairs, workers, advance, learned=data.learned)
    matched.held_out = {pair: matched.held_out[pair] for pair in matched.matches}
    matched.loops.clear()
    matched.ordered = False
    return matched
