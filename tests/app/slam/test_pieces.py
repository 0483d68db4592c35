"""Features, matches, covisibility, tracks, keyframe selection and pose interpolation."""

from dataclasses import replace
from itertools import pairwise

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.core.transforms import Similarity, invert_pose, rotation_matrix
from stream_recon.app.slam.ba import problem, robust_ba
from stream_recon.app.slam.frame_data import reproject
from stream_recon.app.slam.matching import covisibility, features, matching, relative_poses
from stream_recon.app.slam.matching.config import DEFAULT_MATCHING
from stream_recon.app.slam.matching.features import Features
from stream_recon.app.slam.matching.matching import build_tracks
from stream_recon.app.slam.offline import all_frames
from stream_recon.app.slam.offline.initialization import initial_state
from stream_recon.app.slam.offline.keyframe_selection import KeyframeConfig, choose_keyframes
from tests.app.slam.room import FOCAL, SIZE, Video, drifting, look_down, walk

LENS = CameraModel(FOCAL, SIZE[0] / 2, SIZE[1] / 2)
DESCRIPTORS = DEFAULT_MATCHING.descriptors
EXACT_PX = 1.0


def detected(video: Video) -> list[Features]:
    return [features.detect(grey, depth()) for _, grey, depth in video.read(range(len(video.truth)))]


def missed(video: Video, found: list[Features], i: int, j: int, m: NDArray[np.int32]) -> NDArray[np.float64]:
    """Reprojection errors of matches under true depth and poses."""
    T = invert_pose(video.truth[j]) @ video.truth[i]
    there, _ = reproject(LENS, found[i].uv[m[:, 0]], found[i].z[m[:, 0]], T)
    off = np.linalg.norm(there - found[j].uv[m[:, 1]], axis=1)
    return off[found[i].z[m[:, 0]] > 0]


def test_matches_are_right_at_any_image_rotation() -> None:
    truth = look_down(3)
    video = Video(truth, truth, focal=FOCAL, scale_noise=0.0)
    found = detected(video)
    m = matching.verify(found[0], found[1], matching.match(found[0], found[1]), DESCRIPTORS.min_unguided)
    assert len(m) > 100
    assert np.median(missed(video, found, 0, 1, m)) < EXACT_PX


def test_guided_matches_stay_near_where_they_should_be() -> None:
    truth = walk(6)[:2]
    video = Video(truth, truth, focal=FOCAL, scale_noise=0.0)
    a, b = detected(video)
    predicted, _ = reproject(LENS, a.uv, np.where(a.z > 0, a.z, np.nan), invert_pose(truth[1]) @ truth[0])
    m = matching.match(a, b, predicted, radius=10.0)
    assert len(m) > 100
    assert (np.abs(predicted[m[:, 0]] - b.uv[m[:, 1]]) <= 10).all()
    assert len(np.unique(m[:, 1])) == len(m)


def test_guided_matches_are_those_of_the_full_table() -> None:
    random = np.random.default_rng(4)

    def some(count: int) -> Features:
        looks = random.normal(size=(count, 128)).astype(np.float32)
        looks /= np.linalg.norm(looks, axis=1, keepdims=True)
        return Features(random.uniform(0, (320, 240), (count, 2)).astype(np.float32), looks, np.ones(count, np.float32))

    a, b = some(300), some(280)
    b.descriptors[:250] = 0.9 * a.descriptors[:250] + 0.1 * b.descriptors[:250]
    predicted = a.uv + random.normal(0, 40, a.uv.shape).astype(np.float32)
    predicted[::7] = np.nan
    radius = 25.0
    cosine = a.descriptors @ b.descriptors.T
    with np.errstate(invalid="ignore"):
        cosine[~(np.abs(predicted[:, None] - b.uv[None]) <= radius).all(axis=2)] = -1
    best = cosine.argmax(axis=1)
    mutual = (cosine.argmax(axis=0)[best] == np.arange(300)) & (cosine.max(axis=1) > DESCRIPTORS.min_cosine)
    found = matching.match(a, b, predicted, radius)
    assert len(found) and (mutual[found[:, 0]]).all() and (found[:, 1] == best[found[:, 0]]).all()
    second = np.sort(cosine, axis=1)[:, -2]
    clear = mutual & (second < 0.5)
    assert clear.sum() == np.isin(np.flatnonzero(clear), found[:, 0]).sum()


def test_overlap_is_the_share_that_both_see() -> None:
    truth = walk(12)
    video = Video(truth, truth, focal=FOCAL, scale_noise=0.0)
    views = video.views()
    shared = covisibility.overlaps(views, LENS)
    assert (np.triu(shared) == 0).all() and shared[1, 0] > 0.8
    for i, j in ((5, 2), (9, 8)):
        uv, z = views[i].grid.pixels()
        T = np.linalg.inv(truth[j]) @ truth[i]
        there, depth = reproject(LENS, uv[::2], z[::2], T)
        seen = views[j].grid.sample(np.nan_to_num(there, nan=-1e6))
        assert shared[i, j] == pytest.approx(np.mean((seen > 0) & (np.abs(depth / np.maximum(seen, 1e-9) - 1) < 0.35)))


def test_the_motion_that_covers_more_of_the_image_wins_over_more_texture() -> None:
    random = np.random.default_rng(0)
    xyz = np.column_stack([random.uniform(-1, 1, (150, 2)), random.uniform(3, 6, 150)])
    patch = np.column_stack([random.uniform(0.1, 0.4, (300, 2)), random.uniform(2.9, 3.4, 300)])
    a = np.concatenate([LENS.project(xyz), LENS.project(patch)])
    steps = np.array([[0.3, 0.0, 0.1], [-0.1, 0.4, -0.3]])
    b = np.concatenate([LENS.project(xyz + steps[0]), LENS.project(patch + steps[1])])
    blank = np.zeros((450, 128), np.float32), np.ones(450, np.float32)
    first, second = (Features(uv.astype(np.float32), *blank) for uv in (a, b))
    every = np.stack([np.arange(450)] * 2, axis=1).astype(np.int32)
    kept = matching.verify(first, second, every, DESCRIPTORS.min_guided)[:, 0]
    assert (kept < 150).mean() > 0.9


def test_features_are_distributed_over_the_image() -> None:
    random = np.random.default_rng(1)
    corner, rest = random.uniform(0, 40, (900, 2)), random.uniform(0, 240, (100, 2))
    kept = features.select_evenly(np.concatenate([corner, rest]), (320, 240), 150)
    assert len(kept) == 150 and (kept >= 900).sum() > 60


def test_a_track_that_a_keyframe_sees_twice_leaves_that_keyframe() -> None:
    matches = {(0, 1): np.array([[0, 0], [1, 1]], np.int32), (1, 2): np.array([[0, 5]], np.int32)}
    matches[0, 2] = np.array([[2, 5], [1, 3]], np.int32)
    tracks = build_tracks([3, 2, 6], matches)
    seen = {(t, k, f) for t, k, f in zip(tracks.track.tolist(), tracks.keyframe, tracks.feature, strict=True)}
    by_track = [sorted((int(k), int(f)) for t, k, f in seen if t == n) for n in range(len(tracks))]
    # Features 0 and 2 of keyframe 0 are in one track: it sees none of it.
    assert sorted(by_track) == [[(0, 1), (1, 1), (2, 3)], [(1, 0), (2, 5)]]


def test_no_matches_make_no_tracks() -> None:
    assert len(build_tracks([4, 4], {})) == 0


def test_lens_is_undone() -> None:
    lens = replace(LENS, k1=-0.08)
    uv = np.random.default_rng(2).uniform(0, 240, (50, 2))
    assert np.abs(lens.project(3 * lens.unproject(uv)) - uv).max() < 0.02


def test_keyframes_follow_the_motion_and_never_exceed_their_number() -> None:
    truth = walk(60)
    video = Video(truth, truth)
    views = video.views()
    chosen = choose_keyframes(views, SIZE)
    assert chosen[0] == 0 and chosen[-1] == 59 and chosen == sorted(set(chosen))
    assert len(choose_keyframes(views, SIZE, KeyframeConfig(max_keyframes=12))) <= 12
    still = [replace(view, T_world_camera=truth[0]) for view in views]
    assert len(choose_keyframes(still, SIZE)) < 12


def test_blurred_frames_are_passed_over() -> None:
    truth = walk(40)
    views = Video(truth, truth).views()
    blurred = [replace(v, sharpness=0.01 * v.sharpness) if k % 3 == 1 else v for k, v in enumerate(views)]
    inner = choose_keyframes(blurred, SIZE)[1:-1]
    assert inner and all(k % 3 != 1 for k in inner)


def test_frames_that_show_the_same_look_alike() -> None:
    there = walk(8)
    truth = np.concatenate([there, there[:2]])
    alike = features.similarity_matrix(detected(Video(truth, truth)))
    assert alike[8].argsort()[-2] == 0 and alike[9].argsort()[-2] == 1


def test_a_similar_place_further_on_is_no_loop() -> None:
    T = np.tile(np.eye(4), (30, 1, 1))
    T[:, 2, 3] = np.arange(30.0)
    near, same = np.eye(4), np.eye(4)
    near[2, 3] = 24.0
    edges = {(0, 29): relative_poses.Edge(0, 29, same, 100), (1, 25): relative_poses.Edge(1, 25, near, 100)}
    assert relative_poses.implausible_edges(T, edges) == {(0, 29)}


def test_faint_texture_is_detected_and_matched() -> None:
    truth = walk(30)[:2]
    video = Video(truth, truth, scale_noise=0.0, focal=FOCAL)
    found = []
    for _, grey, depth in video.read(range(2)):
        faint = cv2.GaussianBlur(grey, None, 1.5).astype(np.float32)
        found.append(features.detect(np.rint(128 + 0.08 * (faint - 128)).astype(np.uint8), depth()))
    assert min(map(len, found)) > 250
    assert len(matching.verify(*found, matching.match(*found), 30)) > 60


def test_interpolation_moves_every_frame_by_a_similarity() -> None:
    network = drifting(walk(20), 0.0, 0.0)
    change = Similarity(1.7, rotation_matrix(np.array([0.1, 0.2, 0.3, 0.9])), np.array([1.0, 2.0, 3.0]))
    positions = np.array([0, 7, 12, 19])
    one = np.zeros(20, np.intp)
    interpolator = all_frames.PoseInterpolator(
        positions, network, change.move_pose(network)[positions], np.full(4, 1.7), one
    )
    moved = np.array([interpolator.pose(k) for k in range(20)])
    assert np.abs(moved - change.move_pose(network)).max() < 1e-9
    alone = all_frames.PoseInterpolator(positions[:1], network, change.move_pose(network)[:1], np.full(1, 1.7), one)
    assert np.abs(np.array([alone.pose(k) for k in range(20)]) - change.move_pose(network)).max() < 1e-9


def test_a_motion_that_keyframes_contradict_fits_worse() -> None:
    truth, positions, one = walk(20), np.array([0, 7, 12, 19]), np.zeros(20, np.intp)
    right = all_frames.PoseInterpolator(positions, truth, truth[positions], np.ones(4), one)
    astray = truth.copy()
    astray[9:] = Similarity(1.0, rotation_matrix(np.array([0.0, 0.3, 0.0, 1.0])), np.zeros(3)).move_pose(astray[9:])
    wrong = all_frames.PoseInterpolator(positions, astray, truth[positions], np.ones(4), one)
    assert max(right.misfit(k) for k in range(20)) < 1e-6
    assert all((wrong.misfit(k) > 0.1) == (7 < k <= 12) for k in range(20))
    alone = all_frames.PoseInterpolator(positions[:1], truth, truth[:1], np.ones(1), one)
    assert alone.misfit(5) < 1e-6


def test_the_focal_prior_of_the_second_pass_depends_on_the_errors() -> None:
    seen = problem.Observations(np.zeros(9, np.intp), np.arange(9), np.zeros((9, 2)))
    scene = problem.BAScene(np.eye(4)[None], np.ones((9, 3)), LENS)
    priors = robust_ba.first_pass_priors(FOCAL, 0.1)
    sigmas = [
        robust_ba.second_pass_priors(
            priors, robust_ba.BAState(scene, seen, np.arange(9), np.full(9, px), np.ones(9))
        ).log_focal_sigma
        for px in (0.0, 0.1, 0.3, 1.0, 1e3)
    ]
    assert sigmas == sorted(sigmas, reverse=True) and 0 < sigmas[-1] < sigmas[0] <= priors.log_focal_sigma


def test_no_frame_follows_a_keyframe_of_another_segment() -> None:
    network = drifting(walk(20), 0.0, 0.0)
    change = Similarity(1.7, rotation_matrix(np.array([0.1, 0.2, 0.3, 0.9])), np.array([1.0, 2.0, 3.0]))
    segment = np.repeat([0, 1, 2], [8, 7, 5])
    positions = np.array([0, 5, 17, 19])
    after = np.concatenate([change.move_pose(network)[positions[:2]], network[positions[2:]]])
    interpolator = all_frames.PoseInterpolator(positions, network, after, np.array([1.7, 1.7, 1.0, 1.0]), segment)
    moved = np.array([interpolator.pose(k) for k in range(20)])
    assert np.abs(moved[:8] - change.move_pose(network)[:8]).max() < 1e-9
    assert np.abs(moved[8:] - network[8:]).max() < 1e-9


def test_points_are_tracked_from_shifted_predictions() -> None:
    truth = walk(30)[:2]
    video = Video(truth, truth, scale_noise=0.0, focal=FOCAL)
    (_, first, depth), (_, second, _) = video.read(range(2))
    reader = depth()
    uv = features.detect(first, reader).uv
    z = reader.sample(uv)
    predicted, _ = reproject(LENS, uv, np.where(z > 0, z, np.nan), invert_pose(truth[1]) @ truth[0])
    there, arrived = matching.track_klt(first, second, uv, predicted + 3.0)
    assert arrived.mean() > 0.5
    assert np.median(np.linalg.norm(there - predicted, axis=1)[arrived]) < 0.3


def test_held_out_features_are_in_no_track_of_the_first_pass() -> None:
    truth = walk(4)
    video = Video(truth, truth, focal=FOCAL)
    found = detected(video)
    views = video.views()
    wanted = covisibility.candidate_pairs(views, LENS, features.similarity_matrix(found))
    result = covisibility.match_pairs(views, found, LENS, wanted)
    assert result.held_out
    for (i, j), m in result.held_out.items():
        out = covisibility.held_out_mask(found[i])[m[:, 0]] | covisibility.held_out_mask(found[j])[m[:, 1]]
        assert out.all()


def test_dropping_keeps_points_that_two_see() -> None:
    truth = walk(6)
    video = Video(truth, truth, focal=FOCAL, scale_noise=0.0)
    found = detected(video)
    m = {}
    for k, (a, b) in enumerate(pairwise(found)):
        m[k, k + 1] = matching.verify(a, b, matching.match(a, b), DESCRIPTORS.min_guided)
    begun = initial_state(truth, LENS, found, build_tracks([len(f) for f in found], m))
    kept = robust_ba.without_outliers(begun, 3.0)
    assert 0 < len(kept.observations) < len(begun.observations)
    assert (kept.errors < 3).all() and (kept.views_of_points >= 2).all()
