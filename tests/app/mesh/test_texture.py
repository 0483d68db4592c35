"""Steps of texturing: choice of views, smooth labels, packing."""

import numpy as np
import pytest

from stream_recon.app.core.types import Intrinsics
from stream_recon.app.mesh.atlas import copy_patches, pack_patches
from stream_recon.app.mesh.config import TextureConfig, ViewConfig
from stream_recon.app.mesh.fusion import SourceView
from stream_recon.app.mesh.labelling import neighbours, patches_of, view_labels
from stream_recon.app.mesh.rasterizer import project_vertices, rasterize
from stream_recon.app.mesh.view_scores import choose_views, normals_and_areas, visible_vertices
from tests.app.mesh.test_holes import sheet

CONFIG = TextureConfig()


def test_few_views_are_chosen_and_all_is_shown() -> None:
    areas = np.ones(1000, np.float32)
    scores = np.zeros((30, 1000), np.float16)
    for view in range(30):  # ten views of each third, one of which is best
        third = slice(333 * (view % 3), 333 * (view % 3) + 334)
        scores[view, third] = 1.0 if view < 3 else 0.7
    assert sorted(choose_views(scores, areas, CONFIG.views)) == [0, 1, 2]
    assert choose_views(np.zeros((4, 10), np.float16), areas[:10], CONFIG.views) == []


def test_labels_are_smooth_and_follow_quality() -> None:
    mesh = sheet(30)
    count = len(mesh.faces)
    x = mesh.xyz[mesh.faces].mean(axis=1)[:, 0]
    random = np.random.default_rng(1)
    # Two views, each better on its side, with noise that decides triangle by triangle without smoothing.
    scores = np.stack([1 - 0.4 * (x > 0), 0.6 + 0.4 * (x > 0)]) + random.normal(0, 0.25, (2, count))
    scores = scores.clip(0.05, 2).astype(np.float16)
    labels = view_labels(mesh, scores, CONFIG.labels)
    right = labels == (x > 0)
    assert right.mean() > 0.9 > (scores.argmax(axis=0) == (x > 0)).mean()
    assert len(np.unique(patches_of(labels, neighbours(mesh)[0]))) <= 6


def test_triangles_that_no_view_shows_have_no_label() -> None:
    mesh = sheet(10)
    scores = np.ones((2, len(mesh.faces)), np.float16)
    scores[:, :20] = 0
    labels = view_labels(mesh, scores, CONFIG.labels)
    assert (labels[:20] == -1).all() and (labels[20:] >= 0).all()
    assert (view_labels(mesh, scores[:0], CONFIG.labels) == -1).all()


def test_patches_do_not_overlap_and_stay_within_images() -> None:
    random = np.random.default_rng(3)
    low = random.uniform(0, 500, (2000, 2)).astype(np.float32)
    high = low + random.exponential(60, (2000, 2)).astype(np.float32)
    packing = pack_patches(low, high, CONFIG.atlas)
    used = [np.zeros((height, width), np.uint8) for width, height in packing.sizes]
    for image, (x, y), (w, h) in zip(packing.image, packing.corner, packing.size, strict=True):
        area = used[image][y : y + h, x : x + w]
        assert area.shape == (h, w)
        area += 1
    assert max(int(image.max()) for image in used) == 1
    assert np.mean([image.mean() for image in used]) > 0.7
    assert max(max(size) for size in packing.sizes) <= 4096
    huge = pack_patches(np.zeros((40, 2), np.float32), np.full((40, 2), 4000, np.float32), CONFIG.atlas)
    assert huge.scale < 1 and len(huge.sizes) <= 3


def test_a_patch_shows_its_part_of_the_image() -> None:
    image = np.zeros((60, 80, 3), np.uint8)
    image[..., 0], image[..., 1] = np.arange(80), np.arange(60)[:, None]
    low, high = np.array([[10.0, 20.0]], np.float32), np.array([[50.0, 44.0]], np.float32)
    packing = pack_patches(low, high, CONFIG.atlas)
    assert packing.scale == CONFIG.atlas.scale
    width, height = packing.sizes[0]
    atlas = [np.zeros((height, width, 3), np.uint8)]
    copy_patches(atlas, packing, np.array([0]), image)
    place = (np.array([[12.5, 21.5], [48.5, 40.5]]) - packing.origin[0]) * packing.scale + packing.corner[0]
    for (x, y), pixel in zip(np.floor(place).astype(int), ((12, 21), (48, 40)), strict=True):
        assert np.abs(atlas[0][y, x, :2].astype(int) - pixel).max() <= 1


def test_normals_point_to_the_front() -> None:
    normals, areas = normals_and_areas(sheet(4))
    assert normals == pytest.approx(np.tile([[0, 0, -1]], (32, 1)), abs=1e-5) and areas == pytest.approx(0.00125)


@pytest.mark.parametrize("unit", [0.01, 1.0, 100.0])
def test_what_a_view_shows_does_not_depend_on_the_unit_of_length(unit: float) -> None:
    mesh, camera = sheet(), Intrinsics(90, 90, 30, 30)
    image, depth = np.zeros((60, 60, 3), np.uint8), np.full((60, 60), 3 * unit, np.float32)
    view = SourceView(image, camera, np.eye(4), depth, np.zeros((60, 60), np.bool_))
    projection = project_vertices(mesh.xyz * np.float32(unit), np.eye(4), camera)
    inverse = rasterize(projection, mesh.faces, (60, 60))[1]
    shown = visible_vertices(projection, inverse, view, 0.0, ViewConfig())
    # Half of the view's width is a third of the depth: 20 of the sheet's edges, less the image's border.
    expected = np.abs(mesh.xyz[:, :2]).max(axis=1) < 0.96
    assert (shown == expected).all()
