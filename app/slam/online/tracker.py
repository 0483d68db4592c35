"""Frame by frame: a pose against the last keyframe's points, and new keyframes, adjusted with the last ones."""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.core.types import FrameResult, Intrinsics
from stream_recon.app.slam.ba.levenberg import SingularError
from stream_recon.app.slam.ba.problem import CameraModel
from stream_recon.app.slam.ba.robust_ba import BARound
from stream_recon.app.slam.frame_data import DepthReader, Scale, project_points
from stream_recon.app.slam.online.keyframe import NO_TRACKS, AttachedFrame, Keyframe, TrackedPoints, shared
from stream_recon.app.slam.online.keyframe_features import (
    KeyframeImages,
    TrackIds,
    consistent_tracks,
    detect_corners,
    match_keyframes,
    merge_tracks,
    pose_from_tracks,
)
from stream_recon.app.slam.online.local_ba import UNSURE, BAResult, adjust_window
from stream_recon.app.slam.online.loop_closure import LoopCorrection
from stream_recon.app.slam.online.model_selection import DOUBT_OVER, DynamicSceneTest, network_is_better
from stream_recon.app.slam.online.resectioning import (
    AGREEING_PX,
    LEAST_MOTION,
    TrackingResult,
    refine_attached_pose,
    track_frame,
)

logger = logging.getLogger(__name__)

FAILURES = (SingularError, np.linalg.LinAlgError, cv2.error)

FloatArray = NDArray[np.float64]
Grey = NDArray[np.uint8]

STEP = 0.025
"""Displacement of the image from one keyframe to the next, as a share of its longer side."""
LOST = 0.5
"""Share of the points that has to arrive in a frame, or it becomes a keyframe."""
FEW = 60
"""Tracks followed into a keyframe: with fewer, descriptors are asked, too."""
MOST_REST = 8
"""Keyframes until descriptors are asked again, at most: twice as many each time that they find no pose once more."""
MIN_TRACKS = 30
"""Fewer do not make a keyframe."""
WINDOW, FREE = 12, 7
"""Keyframes whose tracks are adjusted together, and how many of the newest of them may move."""
BEGINNING = 6
"""Keyframes of which each is adjusted with those before it; later on every other one does, which serves as well."""
ACTIVE = 150
"""Keyframes that are adjusted all together, at most: older ones keep nothing but their poses."""
MOST_ENDS, MOST_HELD = 300, 40
"""Keyframes at the ends of loops whose tracks are kept, and of those that came before the active ones how many hold an
adjustment: those that have most tracks in common with it."""
SEEN = 3
"""Keyframes whose images are kept."""
GAIN_OVER, MOST_GAIN = 6, 2.0
"""Keyframes over which the network's way is compared with the map's, and by how much they may differ."""
JUDGED = 4
"""Keyframes over which held-out tracks are counted."""
BLURRED = 0.3
"""Of the usual sharpness: such a frame says nothing about where it is."""
WARM = (BARound(5, None, 4, tolerance=3e-3), BARound(1.5, 6, 4, tolerance=3e-3))


@dataclass
class TrackerCounts:
    """What is told of the stage."""

    tracks: int = 0
    error_px: float | None = None
    keyframes: int = 0
    fallback_segments: int = 0
    """Stretches."""
    skipped: int = 0
    """Adjustments, since the source was ahead."""


class Tracker:
    """The map of one stretch, and the frame that was last put into it.

    Args:
        first: its first frame as the network has it; still to be added.
        counts: goes on counting there.
        T_world_camera: [4, 4], of its first frame; None: as the network has it.
        log_scale: see `Keyframe`.
    """

    def __init__(
        self,
        scale: Scale,
        first: FrameResult,
        counts: TrackerCounts,
        T_world_camera: FloatArray | None = None,
        log_scale: float = 0.0,
    ) -> None:
        self.scale = scale
        self._centre = first.intrinsics.cx, first.intrinsics.cy
        self.lens = CameraModel(self._focal(first), scale.size[0] / 2, scale.size[1] / 2)
        self.keyframes: list[Keyframe] = []
        self.counts = counts
        self._hurried = False
        self.changed: set[int] = set()
        """Numbers of the keyframes that moved since somebody emptied this; their members moved with them."""
        self.joined: set[int] = set()
        """Likewise, of those that frames joined."""
        self._tracks = TrackIds()
        self.log_scale = log_scale
        self._sights: deque[KeyframeImages] = deque(maxlen=SEEN)
        self._T: FloatArray | None = T_world_camera
        self._goes_on = T_world_camera is not None
        """Another map gave it its unit."""
        self._T_network: FloatArray | None = None
        self._sharpness: deque[float] = deque(maxlen=15)
        self._doubt = DynamicSceneTest()
        self._failed = self._resting = 0
        """How often descriptors found no pose of late, and for how many keyframes they are not asked."""
        self._looped: list[int] = []
        """Numbers of the keyframes at the ends of loops, in the order in which these were closed."""

    def follow(self, T_network: FloatArray, focal: float) -> None:
        """The pose that the map begins with is of the frame before the first, which the network has at ``T_network``;
        ``focal``: the map's so far, in pixels of the source image."""
        self._T_network = T_network
        self.lens = replace(self.lens, focal=focal * self.scale.factor)

    def add(self, result: FrameResult, image: Grey, *, hurried: bool = False) -> None:
        """Put the next frame into the map; if ``hurried`` without adjusting it with those before."""
        self._hurried = hurried
        T_network = np.asarray(result.T_world_camera, np.float64)
        if self._T is None:
            self._T = T_network
        if self._T_network is None:
            self._T_network = T_network
        relative = invert_pose(self._T_network) @ T_network
        gain = self._gain()
        relative[:3, 3] *= gain
        guess = np.asarray(self._T @ relative)
        self._T_network = T_network
        blurred = self._is_blurred(image)
        if not self.keyframes:
            self._T = self._insert(result, image, guess, None)
        elif blurred:
            self._T = self._followed(result.index, guess)
        else:
            try:
                self._T = self._measured(result, image, guess, gain)
            except FAILURES:
                # No frame may be lost for want of a better pose.
                logger.exception("frame %d", result.index)
                self._T = self._followed(result.index, guess)
        self.joined.add(self.keyframes[-1].number)

    def _measured(self, result: FrameResult, image: Grey, guess: FloatArray, gain: float) -> FloatArray:
        last = self.keyframes[-1]
        T_network = np.asarray(result.T_world_camera, np.float64)
        found = track_frame(last, self._sights[-1].image, image, self.lens, guess, T_network, gain)
        T = found.T_world_camera if found.good and last.trusted else guess
        if found.good and found.moved < STEP and len(found.row) >= LOST * found.asked:
            followed = TrackedPoints(found.row, found.uv, T_network)
            return self._followed(result.index, T, followed if last.trusted else None)
        return self._insert(result, image, T, found)

    def _gain(self) -> float:
        """Lengths of the camera's way in the map, for each of the network's, of late.

        The network's depths and its ways need not be in one unit, so the depths' one only serves where nothing moves.
        """
        recent = self.keyframes[-GAIN_OVER:]
        if recent and recent[-1].doubtful:
            return recent[-1].gain
        recent = [keyframe for keyframe in recent if not keyframe.doubtful]
        return _gain_over(recent, self.log_scale)

    def _followed(self, index: int, T: FloatArray, followed: TrackedPoints | None = None) -> FloatArray:
        last = self.keyframes[-1]
        relative = np.asarray(invert_pose(last.T_world_camera) @ T)
        last.members.append(AttachedFrame(index, relative, last.log_scale, followed=followed))
        return T

    def _insert(self, result: FrameResult, image: Grey, T: FloatArray, found: TrackingResult | None) -> FloatArray:
        reader = DepthReader.of(result, self.scale)
        number = self.keyframes[-1].number + 1 if self.keyframes else 0
        none = np.zeros(0)
        new = Keyframe(
            number,
            np.asarray(result.T_world_camera, np.float64),
            self._focal(result),
            T,
            self.log_scale,
            none.astype(np.int64),
            none.astype(np.float32).reshape(0, 2),
            none.astype(np.float32),
            none,
            none.astype(np.float32),
            members=[AttachedFrame(result.index, np.eye(4), self.log_scale)],
        )
        sight = KeyframeImages(new, image, reader)
        if found is not None and found.good:
            last = self.keyframes[-1]
            kept = consistent_tracks(last, found.uv, found.row) & (found.distance < 2 * AGREEING_PX)
            # What judges must not have been chosen by what it judges.
            kept |= last.held_out[found.row]
            row, uv = found.row[kept], found.uv[kept]
            new.extend(last.track[row], uv, reader.at(uv), sight.texture.sigma(uv))
            new.moved = found.moved
        if found is not None:
            last = self.keyframes[-1]
            self._doubt.look(last, found, invert_pose(last.T_network) @ new.T_network, max(self.scale.size))
        if self._sights and len(new.track) < FEW:
            self._recognise(sight)
        detect_corners(sight, self._tracks)
        if len(new.track) < MIN_TRACKS and self.keyframes:
            return self._followed(result.index, new.T_world_camera)
        _hand_on(new, [s.keyframe for s in self._sights], self.lens)
        self._sights.append(sight)
        self.keyframes.append(new)
        self.counts.keyframes += 1
        if len(self.keyframes) > ACTIVE:
            self.place_again(self.keyframes[-ACTIVE - 1 : -ACTIVE])
            self.keyframes[-ACTIVE - 1].forget()
        try:
            new.gain = self._gain()
            if not self._doubt.holds and (number < BEGINNING or number % 2):
                self._adjust()
            # Which may have raised it.
            if self._doubt.holds:
                self._leave(new)
            else:
                self._judge(new)
        except FAILURES:
            logger.exception("keyframe %d", new.number)
        self.log_scale = new.log_scale
        return new.T_world_camera

    def _recognise(self, sight: KeyframeImages) -> None:
        """Ask descriptors where a keyframe is that few tracks were followed into."""
        if self._resting:
            self._resting -= 1
            return
        match_keyframes(sight, self._sights, self.lens, self._tracks)
        pose = pose_from_tracks(sight.keyframe, [s.keyframe for s in self._sights], self.lens)
        if pose is not None:
            sight.keyframe.T_world_camera = pose
        self._failed = self._failed + 1 if pose is None else 0
        self._resting = min(2 ** max(self._failed - 1, 0), MOST_REST) - 1

    def _adjust(self) -> None:
        window = self.keyframes[-WINDOW:]
        if len(window) < 2:
            return
        if self._hurried:
            self.counts.skipped += 1
            return
        fixed = max(len(window) - FREE, 1)
        found = adjust_window(window, self.lens, WARM, fixed=fixed)
        if found is not None:
            if self._doubt.jumped(found.jump(window[-1]), window[-1].seen_depth):
                return
            if fixed == 1 and not self._goes_on:
                found = found.aligned(window)
            found.place(window)
            self.changed |= {keyframe.number for keyframe in window}
            self.counts.tracks, self.counts.error_px = found.tracks, found.error_px

    @property
    def newest(self) -> KeyframeImages:
        """The last keyframe, with its image."""
        return self._sights[-1]

    @property
    def active(self) -> list[Keyframe]:
        """Keyframes that may still be adjusted; those before them stay where they are."""
        return self.keyframes[-ACTIVE:]

    @property
    def held(self) -> list[Keyframe]:
        """Those before them whose tracks close loops with them."""
        if not self._looped:
            return []
        now = np.unique(np.concatenate([keyframe.looped for keyframe in self.active]))
        old = [self.keyframes[number] for number in self._looped if number < len(self.keyframes) - ACTIVE]
        common = {keyframe.number: int(np.isin(keyframe.track, now).sum()) for keyframe in old}
        most = sorted((number for number in common if common[number]), key=lambda number: (-common[number], number))
        return [self.keyframes[number] for number in sorted(most[:MOST_HELD])]

    def close(self, bend: LoopCorrection) -> None:
        """Bend the map so that loops meet, and let their ends see the same tracks."""
        S = bend.at(range(len(self.keyframes)))
        scale = np.cbrt(np.linalg.det(S[:, :3, :3]))
        T = S @ np.array([keyframe.T_world_camera for keyframe in self.keyframes])
        T[:, :3, :3] /= scale[:, None, None]
        for keyframe, pose, grown in zip(self.keyframes, T, np.log(scale), strict=True):
            keyframe.move(pose, keyframe.log_scale + float(grown))
            # What was given out before is bent: it no longer says anything of the unit.
            keyframe.given = keyframe.T_world_camera.copy()
        self._T, self.log_scale = self.newest_pose(), self.keyframes[-1].log_scale
        self.changed |= set(range(len(self.keyframes)))
        for loop in bend.loops:
            joined = merge_tracks(loop.first, loop.second, loop.matches, self._tracks)
            for place in (loop.first, loop.second):
                keyframe = place.keyframe
                keyframe.looped = np.union1d(keyframe.looped, np.array(sorted(joined), np.int64))
                if keyframe.number not in self._looped:
                    self._looped.append(keyframe.number)
                if keyframe.number < len(self.keyframes) - ACTIVE:
                    keyframe.forget()
        if len(self._looped) > MOST_ENDS:
            self._thin_loops()

    def _thin_loops(self) -> None:
        """Every other end of the older half is one no more, as of the loops."""
        half = MOST_ENDS // 2
        for number in self._looped[1:half:2]:
            keyframe = self.keyframes[number]
            keyframe.looped = NO_TRACKS
            if number < len(self.keyframes) - ACTIVE:
                keyframe.forget()
        self._looped = self._looped[:half:2] + self._looped[half:]

    def settle(self, found: BAResult, numbers: list[int]) -> None:
        """Take in what the keyframes of these ``numbers`` were adjusted to meanwhile; later ones come along."""
        count = numbers[-1] + 1
        last = self.keyframes[count - 1]
        before, unit = invert_pose(last.T_world_camera), last.log_scale
        # Of many keyframes it may put right what has drifted.
        if count <= WINDOW and self._doubt.jumped(found.jump(last), last.seen_depth):
            return
        found.place([self.keyframes[number] for number in numbers])
        self.lens = found.lens
        grown = last.log_scale - unit

        def carried(T: FloatArray) -> FloatArray:
            relative = before @ T
            relative[:3, 3] *= np.exp(grown)
            return np.asarray(last.T_world_camera @ relative)

        for keyframe in self.keyframes[count:]:
            keyframe.move(carried(keyframe.T_world_camera), keyframe.log_scale + grown)
        newest = self.keyframes[-1]
        if self._T is not None:
            self._T = self.newest_pose()
        self.log_scale = newest.log_scale
        self.changed |= {*numbers, *range(count, len(self.keyframes))}

    def place_again(self, keyframes: Sequence[Keyframe]) -> None:
        """Place the frames between by points that are better known than when they came."""
        for keyframe in keyframes:
            around = self.keyframes[max(keyframe.number - 1, 0) : keyframe.number + 3]
            gain = _gain_over(around, keyframe.log_scale)
            for member in keyframe.members:
                if member.followed is not None and keyframe.trusted and keyframe.unsure < UNSURE:
                    relative = invert_pose(keyframe.T_world_camera) @ keyframe.pose_of(member)
                    member.T_keyframe_frame = refine_attached_pose(keyframe, member.followed, relative, gain, self.lens)
                    member.log_scale = keyframe.log_scale
                    self.changed.add(keyframe.number)

    def points(self) -> NDArray[np.float32]:
        """World points [N, 3] of the active keyframes' tracks, each once."""
        active = self.active
        track = np.concatenate([keyframe.track[np.isfinite(keyframe.z)] for keyframe in active])
        xyz = np.concatenate([keyframe.points(self.lens)[np.isfinite(keyframe.z)] for keyframe in active])
        return np.asarray(xyz[np.unique(track, return_index=True)[1]], np.float32)

    def newest_pose(self) -> FloatArray:
        """[4, 4], of the frame that was last put into the map."""
        newest = self.keyframes[-1]
        return newest.pose_of(newest.members[-1])

    def _judge(self, new: Keyframe) -> None:
        judged = self.keyframes[-JUDGED:]
        if len(judged) < 2 or not network_is_better(judged, self.lens):
            return
        before = judged[-2]
        self.counts.fallback_segments += before.trusted
        _follow_network(new, before, self._gain())

    def _leave(self, new: Keyframe) -> None:
        """Put it where the network's motion leads; where doubt begins, those before it, of which it came to be, too."""
        first = new.number
        if not self.keyframes[first - 1].doubtful:
            first = max(first - DOUBT_OVER + 1, 1)
            self.counts.fallback_segments += 1
        for before, keyframe in pairwise(self.keyframes[first - 1 :]):
            _follow_network(keyframe, before, before.gain)
            keyframe.gain, keyframe.doubtful = before.gain, True
            self.changed.add(keyframe.number)

    @property
    def intrinsics(self) -> Intrinsics:
        """The map's camera in pixels of the source image."""
        focal = self.lens.focal / self.scale.factor
        return Intrinsics(focal, focal, *self._centre)

    def _focal(self, result: FrameResult) -> float:
        return float(np.sqrt(result.intrinsics.fx * result.intrinsics.fy)) * self.scale.factor

    def _is_blurred(self, image: Grey) -> bool:
        half = cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        value = float(cv2.Laplacian(half, cv2.CV_32F).var())
        usual = float(np.median(self._sharpness)) if self._sharpness else value
        if value < BLURRED * usual:
            return True
        self._sharpness.append(value)
        return False


def _gain_over(keyframes: Sequence[Keyframe], log_scale: float) -> float:
    """Lengths of the way along these in the map, for each of the network's; the depth's unit where nothing moves."""
    unit = float(np.exp(log_scale))
    if len(keyframes) < 2:
        return unit
    T, T_network = (np.array([getattr(k, name)[:3, 3] for k in keyframes]) for name in ("T_world_camera", "T_network"))
    ours, theirs = (np.linalg.norm(np.diff(centres, axis=0), axis=1) for centres in (T, T_network))
    floor = LEAST_MOTION * keyframes[-1].usual_depth
    ratio = float(np.median((ours + floor) / (theirs * unit + floor)))
    return unit * float(np.clip(ratio, 1 / MOST_GAIN, MOST_GAIN))


def _follow_network(keyframe: Keyframe, before: Keyframe, gain: float) -> None:
    """Put a keyframe where the network's motion leads since the one before, and forget where tracks have its points."""
    relative = invert_pose(before.T_network) @ keyframe.T_network
    relative[:3, 3] *= gain
    keyframe.trusted = False
    keyframe.move(np.asarray(before.T_world_camera @ relative), before.log_scale)
    keyframe.z = np.full(len(keyframe.track), np.nan)


def _hand_on(new: Keyframe, earlier: list[Keyframe], lens: CameraModel) -> None:
    """Give a new keyframe the map's points that it shares, where they lie about where it sees them."""
    inverse = invert_pose(new.T_world_camera)
    for old in earlier:
        rows = shared(old, new)
        rows = rows[np.isfinite(old.z[rows[:, 0]])]
        xyz = old.points(lens)[rows[:, 0]] @ inverse[:3, :3].T + inverse[:3, 3]
        with np.errstate(invalid="ignore"):
            near = np.linalg.norm(project_points(lens, xyz) - new.uv[rows[:, 1]], axis=1) < 5
        new.z[rows[near, 1]] = xyz[near, 2]
