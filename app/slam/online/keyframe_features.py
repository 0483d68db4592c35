"""Tracks of a new keyframe: those that were followed into it, new corners, and where these are few, descriptors."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.core.transforms import invert_pose, rotation_angle_deg
from stream_recon.app.slam.ba.pose_only import batched_pose_only_ba
from stream_recon.app.slam.ba.problem import CameraModel, Observations
from stream_recon.app.slam.frame_data import DepthReader, reproject, unproject
from stream_recon.app.slam.matching.features import Features, detect, select_evenly
from stream_recon.app.slam.matching.matching import MIN_GUIDED, MIN_UNGUIDED, Matches, match, verify
from stream_recon.app.slam.online.keyframe import Keyframe, shared

FloatArray = NDArray[np.float64]
Grey = NDArray[np.uint8]

TRACKS = 350
"""Seen by a keyframe, where its image has so many corners."""
QUALITY = 0.001
"""Of the best corner's response: little, or one rich texture would be all that is seen."""
CANDIDATES = 3
"""Times as many corners are found as are kept, spread over the image."""
DESCRIBED = 600
"""Features of a keyframe that are described."""
UNGUIDED = 2
"""With so many of the keyframes before it a lost frame is matched wherever the network puts it."""
RADIUS = 0.12
"""Of the longer side: how far from its predicted place a match may be."""
FINE, MOST_BLUR = 0.25, 5.0
"""An image is blurred if the variance of its Laplacian at half its size is a smaller share of that at a quarter: of
sharp ones it is .3 to .7, of those blurred by a hundredth of their width .11. Sigmas grow with the square root of how
much smaller it is, up to so many times: such blur makes errors across epipolar lines 1.2 to 1.8 times as large."""
AROUND = 9
"""Pixels of half the image's size, over which texture is looked at."""
FAINT, MOST_FAINT = 1.0, 10.0
"""Of the square of grey levels for a pixel, along the direction in which there is least of them: below this the
variance of a track's place grows as there is less; and the most that a sigma grows to. Over a phone's room errors
across epipolar lines grow from .3 pixels where there is ten times as much to 1.5 where there is a twentieth. Above it
all tracks count alike: the best texture lies in few places."""
PNP_PX = 5.0
MIN_PNP = 20
AGREEING = 0.4
ODD_DEG, ODD_MOTION, ODD_AGREEING = 8.0, 0.15, 0.65
"""A pose that is so far from the network's, or by such a share of the depth, needs so many of the points behind it:
something large that moves by itself has some, too."""


class CornerQuality:
    """How much there is to hold on to about each point of a grey image."""

    def __init__(self, image: Grey) -> None:
        half = cv2.resize(image, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        # OpenCV's derivatives are in shares of white, doubled; here they are in grey levels for each pixel.
        self._least = cv2.cornerMinEigenVal(half, AROUND, ksize=3) * (255.0**2 / 16)
        quarter = cv2.resize(half, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA)
        fine, coarse = (float(cv2.Laplacian(image, cv2.CV_32F).var()) for image in (half, quarter))
        self._blur = min(max(FINE * coarse / max(fine, 1e-9), 1.0), MOST_BLUR) ** 0.5

    def sigma(self, uv: NDArray[np.floating]) -> NDArray[np.float32]:
        """[N], how much less surely tracks at ``uv`` [N, 2] are seen than in a sharp image with texture: from 1 on."""
        height, width = self._least.shape
        x, y = (uv / 2).astype(np.intp).T
        least = self._least[y.clip(0, height - 1), x.clip(0, width - 1)]
        return np.asarray(np.clip(np.sqrt(FAINT / np.maximum(least, 1e-6)), 1.0, MOST_FAINT) * self._blur, np.float32)


@dataclass
class PlaceDescriptor:
    """What is kept of a keyframe to know it again: no images."""

    keyframe: Keyframe
    features: Features
    sigma: NDArray[np.float32]
    """Of the features, see `Keyframe`."""
    tracks: dict[int, int]
    """See `KeyframeImages`."""


@dataclass
class KeyframeImages:
    """What is kept of the last keyframes' images."""

    keyframe: Keyframe
    image: Grey
    reader: DepthReader
    described: Features | None = None
    tracks: dict[int, int] = field(default_factory=dict)
    """Of its described features, those that are known."""
    texture: CornerQuality = field(init=False)

    def __post_init__(self) -> None:
        self.texture = CornerQuality(self.image)

    def features(self) -> Features:
        """Described when somebody first asks."""
        if self.described is None:
            self.described = detect(self.image, self.reader, DESCRIBED)
        return self.described

    @property
    def place(self) -> PlaceDescriptor:
        """What is kept of it when the image is gone."""
        return self.described_by(self.features())

    def described_by(self, features: Features) -> PlaceDescriptor:
        """What is kept of it, with these features."""
        return PlaceDescriptor(self.keyframe, features, self.texture.sigma(features.uv), self.tracks)


class TrackIds:
    """Gives out the numbers of tracks."""

    def __init__(self) -> None:
        self._next = 0

    def new(self, count: int) -> NDArray[np.int64]:
        """[count] numbers not given out before."""
        self._next += count
        return np.arange(self._next - count, self._next, dtype=np.int64)


def detect_corners(sight: KeyframeImages, tracks: TrackIds) -> None:
    """Fill the keyframe up with corners (Shi and Tomasi, CVPR 1994) where it sees no tracks yet."""
    keyframe, image = sight.keyframe, sight.image
    need = TRACKS - len(keyframe.track)
    if need < TRACKS // 20:
        return
    height, width = image.shape
    apart = max(int(0.6 * np.sqrt(height * width / TRACKS)), 6)
    allowed = sight.reader.free()
    free = np.full(image.shape, 255, np.uint8) if allowed is None else allowed
    for x, y in keyframe.uv.astype(int).tolist():
        cv2.circle(free, (x, y), apart, 0, -1)
    corners = cv2.goodFeaturesToTrack(image, CANDIDATES * need, QUALITY, apart, mask=free, blockSize=5)
    if corners is None:
        return
    uv = corners.reshape(-1, 2).astype(np.float32) + np.float32(0.5)
    uv = uv[select_evenly(uv, (width, height), need)]
    keyframe.extend(tracks.new(len(uv)), uv, sight.reader.at(uv), sight.texture.sigma(uv))


def consistent_tracks(first: Keyframe, second_uv: NDArray[np.float32], row: NDArray[np.intp]) -> NDArray[np.bool_]:
    """[P] which of the first's tracks, followed to ``second_uv``, one motion explains; all where none can be told."""
    a, b = _bare(first.uv[row]), _bare(second_uv)
    every = np.arange(len(row), dtype=np.int32)
    kept = verify(a, b, np.stack([every, every], axis=1), MIN_GUIDED)
    if not len(kept):
        return np.ones(len(row), bool)
    return np.asarray(np.isin(every, kept[:, 0]))


def _bare(uv: NDArray[np.float32]) -> Features:
    return Features(uv, np.zeros((0, 128), np.float32), np.zeros(len(uv), np.float32))


def match_keyframes(
    new: KeyframeImages, earlier: Sequence[KeyframeImages], lens: CameraModel, tracks: TrackIds
) -> None:
    """Match a keyframe by descriptors with those before it, given in order; both then see common tracks."""
    there = new.features()
    for back, old in enumerate(reversed(earlier)):
        here = old.features()
        T = invert_pose(new.keyframe.T_world_camera) @ old.keyframe.T_world_camera
        z = np.where(here.z > 0, here.z, np.nan).astype(np.float64) * np.exp(old.keyframe.log_scale)
        predicted, _ = reproject(lens, here.uv, z, T)
        kept = verify(here, there, match(here, there, predicted, RADIUS * max(new.image.shape)), MIN_GUIDED)
        if back < UNGUIDED and len(kept) < 3 * MIN_UNGUIDED:
            # The network may be wrong there.
            anywhere = verify(here, there, match(here, there), MIN_UNGUIDED)
            kept = anywhere if len(anywhere) > len(kept) else kept
        merge_tracks(old.place, new.place, kept, tracks)


def merge_tracks(old: PlaceDescriptor, new: PlaceDescriptor, matches: Matches, tracks: TrackIds) -> set[int]:
    """Let both keyframes see the tracks of matched features: one that either knows already, or a new one.

    Gives the tracks.
    """
    places = old, new
    seen = [set(place.keyframe.track.tolist()) for place in places]
    added: tuple[list[int], list[int]] = ([], [])
    joined = set()
    for pair in matches.tolist():
        known = [place.tracks.get(feature) for place, feature in zip(places, pair, strict=True)]
        number = next((one for one in known if one is not None), None)
        if number is None:
            number = int(tracks.new(1)[0])
        if any(one not in (None, number) for one in known):
            continue
        joined.add(number)
        for side in (0, 1):
            # A track that two features of one image claim is the first one's.
            if number not in seen[side]:
                seen[side].add(number)
                places[side].tracks[pair[side]] = number
                added[side].append(pair[side])
    for place, chosen in zip(places, added, strict=True):
        features, numbers = place.features, [place.tracks[feature] for feature in chosen]
        place.keyframe.extend(np.array(numbers, np.int64), features.uv[chosen], features.z[chosen], place.sigma[chosen])
    return joined


def pose_from_tracks(new: Keyframe, earlier: Sequence[Keyframe], lens: CameraModel) -> FloatArray | None:
    """A keyframe's pose [4, 4] from what it and earlier ones see; None where too few points agree on one."""
    world = np.full((len(new.track), 3), np.nan)
    for keyframe in earlier:
        rows = shared(keyframe, new)
        world[rows[:, 1]] = keyframe.points(lens)[rows[:, 0]]
    known = np.isfinite(world).all(axis=1) & ~new.held_out
    points, uv = world[known], new.uv[known].astype(np.float64)
    if len(points) < MIN_PNP:
        return None
    starts, middle = [new.T_world_camera], points.mean(axis=0)
    # In units of the focal length: no camera matrix, no distortion.
    found, turn, shift, _ = cv2.solvePnPRansac(
        points - middle,
        unproject(lens, uv)[:, :2].copy(),
        np.eye(3),
        None,
        iterationsCount=100,
        reprojectionError=PNP_PX / lens.focal,
        flags=cv2.SOLVEPNP_SQPNP,
    )
    if found:
        T = np.eye(4)
        T[:3, :3] = cv2.Rodrigues(turn)[0]
        T[:3, 3] = shift[:, 0]
        T = invert_pose(T)
        T[:3, 3] += middle
        starts.append(T)
    seen = Observations(np.zeros(len(uv), np.intp), np.arange(len(uv)), uv)
    best, agreeing = None, max(MIN_PNP, AGREEING * len(points))
    for start in starts:
        moved = batched_pose_only_ba(
            start[None], points, seen, lens, loss_scales=(20.0, 6.0, 2.0), iterations=8, tolerance=1e-3
        )
        T, count = moved.T_world_camera[0], int((moved.distances < PNP_PX).sum())
        turned = float(rotation_angle_deg(T[:3, :3].T @ new.T_world_camera[:3, :3]))
        away = np.linalg.norm(T[:3, 3] - new.T_world_camera[:3, 3])
        odd = turned > ODD_DEG or away > ODD_MOTION * new.usual_depth
        if count > agreeing and (not odd or count > ODD_AGREEING * len(points)):
            best, agreeing = T, count
    return best
