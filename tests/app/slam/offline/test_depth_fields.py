"""Depth correction: known fields are found; without parallax or agreement there is none."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.depth_correction import GRID, depth_factors
from stream_recon.app.slam.offline.config import RefineConfig
from stream_recon.app.slam.offline.depth_fields import DepthSamples, FieldConfig, fit_fields, interpolate_fields
from stream_recon.app.slam.offline.refine import refine
from stream_recon.app.slam.offline.report import Refinement
from tests.app.slam.offline.test_refine import KNOWN_LENS
from tests.app.slam.room import FOCAL, Video, drifting, pose, walk

FloatArray = NDArray[np.float64]


def bulge(size: float = 0.15) -> FloatArray:
    """Log-scale field [GRID, GRID] with errors by parts of the image and median 0."""
    x, y = np.meshgrid(np.linspace(-1, 1, GRID), np.linspace(-1, 1, GRID))
    nodes = size * (x + 0.7 * x * y - 0.5 * y)
    return np.asarray(nodes - np.median(nodes))


def with_field(video: Video, nodes: FloatArray) -> Video:
    """The video with depth multiplied by a field."""
    shape = video.results[0].depth.shape
    wrong = depth_factors(nodes.astype(np.float16), (shape[0], shape[1]))
    video.results = [replace(result, depth=result.depth * wrong) for result in video.results]
    return video


def spread(video: Video, found: Refinement, *, with_fields: bool) -> float:
    """Standard deviation of the log of all depth against the truth, of each frame about its own mean."""
    off = []
    exact = Video(video.truth, video.truth, scale_noise=0.0)
    for result, true, field in zip(video.results, exact.results, found.depth_fields, strict=True):
        shape = result.depth.shape
        depth = result.depth * depth_factors(field, (shape[0], shape[1])) if with_fields else result.depth
        off.append(np.std(np.log(depth / true.depth)))
    return float(np.mean(off))


@pytest.mark.slow
def test_a_known_field_is_found_and_taken_away() -> None:
    truth = walk(16)
    video = with_field(Video(truth, drifting(truth, turn_deg=0.5, move=0.1), focal=FOCAL), bulge())
    found = refine(video.views(), video, video.scale, KNOWN_LENS)
    assert spread(video, found, with_fields=True) < 0.5 * spread(video, found, with_fields=False)
    report = found.report
    assert report.depth_fields == len(found.keyframes)
    assert report.depth_error is not None and report.depth_error_before is not None
    assert report.depth_error < 0.5 * report.depth_error_before


@pytest.mark.slow
def test_depth_that_is_right_is_left_alone() -> None:
    truth = walk(10)
    video = Video(truth, truth, focal=FOCAL)
    found = refine(video.views(), video, video.scale, KNOWN_LENS)
    assert spread(video, found, with_fields=True) < spread(video, found, with_fields=False) + 0.005


@pytest.mark.slow
def test_without_parallax_there_is_no_field() -> None:
    """The camera only rotates, so that geometry does not constrain depth."""
    truth = np.array([pose((0.0, 0.0, 0.0), 0.06 * k, 0.03 * np.sin(k)) for k in range(10)])
    video = with_field(Video(truth, truth, focal=FOCAL), bulge())
    found = refine(video.views(), video, video.scale, KNOWN_LENS)
    assert np.abs(found.depth_fields).max() < 0.03


def seen(log_ratio: FloatArray, xy: FloatArray, sigma: float) -> DepthSamples:
    count = len(xy)
    return DepthSamples(np.zeros(count, int), np.arange(count), xy, log_ratio, np.full(count, sigma**2))


def test_wrong_points_do_not_count() -> None:
    random = np.random.default_rng(0)
    xy = random.uniform(0, 1, (600, 2))
    true = 0.2 * (xy[:, 0] - xy[:, 1])
    wrong = true.copy()
    wrong[::10] += 1.5
    fields = [fit_fields(seen(value, xy, 0.08), 1)[0] for value in (true, wrong)]
    assert np.abs(fields[0]).max() > 0.1
    assert np.abs(fields[1] - fields[0]).max() < 0.02


def test_uncertain_points_give_no_field() -> None:
    xy = np.random.default_rng(0).uniform(0, 1, (300, 2))
    (field,) = fit_fields(seen(np.full(300, 0.2), xy, 5.0), 1)
    assert np.abs(field).max() < 0.03
    assert not fit_fields(seen(np.full(10, 0.2), xy[:10], 0.08), 1).any(), "too few points"


@pytest.mark.slow
def test_held_out_points_decide() -> None:
    """A field that improves held-out points too little is not kept."""
    truth = walk(12)
    video = with_field(Video(truth, truth, focal=FOCAL), bulge())
    config = RefineConfig(fields=FieldConfig(min_gain=1.0))
    found = refine(video.views(), video, video.scale, KNOWN_LENS, config)
    assert not found.depth_fields.any() and found.report.depth_fields == 0


def test_frames_between_keyframes_have_their_mix() -> None:
    nodes = np.arange(3)[:, None, None] * 0.1 * np.ones((3, GRID, GRID))
    mixed = interpolate_fields(nodes, [1, 5, 6], np.array([0, 0, 0, 0, 0, 0, 1, 1]))
    np.testing.assert_allclose(mixed[:, 3, 3], [0, 0, 0.025, 0.05, 0.075, 0.1, 0.2, 0.2], atol=1e-3)
    assert interpolate_fields(nodes[:1] + 0.3, [2], np.zeros(4, int))[:, 0, 0] == pytest.approx([0.3] * 4, abs=1e-3)
    across = interpolate_fields(nodes, [1, 4, 6], np.array([0, 0, 0, 1, 1, 1, 1, 1]))
    np.testing.assert_allclose(across[:, 0, 0], [0, 0, 0, 0.1, 0.1, 0.15, 0.2, 0.2], atol=1e-3)
