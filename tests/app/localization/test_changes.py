"""Changes between two results of one place: a plate that is put into a room, and nothing where nothing changed."""

import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stream_recon.app.localization.changes import find_changes
from stream_recon.app.result.files import stored_points
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import CHANGES_NAME, RunSummary
from stream_recon.app.result.writer import ResultWriter
from tests.app.fake_engine import run_info
from tests.app.slam.room import FOCAL, SIZE, network_result, picture, walk

WALK = walk(10)
PLATE = (np.array([-0.2, -0.3]), np.array([0.9, 0.5]), 1.6)
"""Corners (x, y) and depth z of a plate in the room."""


def write(folder: Path, *, plate: bool, seed: int) -> None:
    writer = ResultWriter(folder, run_info())
    random = np.random.default_rng(seed)
    for index, T in enumerate(WALK):
        rgb, depth = picture(T)
        if plate:
            depth = np.where(covered(T), np.minimum(depth, plate_depth(T)), depth)
        noisy = depth * (1 + 0.005 * random.standard_normal(depth.shape))
        result = network_result(index, T, FOCAL, rgb, noisy)
        writer.add(dataclasses.replace(result, segment=0))
    writer.finish(RunSummary(interrupted=False))


def plate_depth(T: NDArray[np.float64]) -> NDArray[np.float64]:
    rays = rays_of(T)
    return np.asarray((PLATE[2] - T[2, 3]) / rays[..., 2])


def rays_of(T: NDArray[np.float64]) -> NDArray[np.float64]:
    width, height = SIZE
    u, v = np.meshgrid(np.arange(width) + 0.5 - width / 2, np.arange(height) + 0.5 - height / 2)
    return np.asarray(np.stack([u / FOCAL, v / FOCAL, np.ones_like(u)], axis=-1) @ T[:3, :3].T)


def covered(T: NDArray[np.float64]) -> NDArray[np.bool_]:
    depth = plate_depth(T)
    hit = T[:3, 3] + depth[..., None] * rays_of(T)
    inside = (hit[..., :2] >= PLATE[0]) & (hit[..., :2] <= PLATE[1])
    return np.asarray(inside.all(axis=-1) & (depth > 0))


def test_a_plate_that_was_put_in_is_new_and_one_taken_out_is_gone(tmp_path: Path) -> None:
    write(tmp_path / "empty", plate=False, seed=1)
    write(tmp_path / "plate", plate=True, seed=2)
    for mine, other, sign in (("plate", "empty", "added"), ("empty", "plate", "gone")):
        changes = find_changes(read_result(tmp_path / mine), read_result(tmp_path / other))
        found, none = (changes.added, changes.gone) if sign == "added" else (changes.gone, changes.added)
        assert not none
        visible = [index for index, T in enumerate(WALK) if covered(T).mean() > 0.05]
        assert len({change.frame for change in found} & set(visible)) > 0.6 * len(visible) > 2
        points = stored_points(tmp_path / mine / CHANGES_NAME)
        xyz = np.stack([points["x"], points["y"], points["z"]], axis=1)
        beside = np.maximum(PLATE[0] - xyz[:, :2], xyz[:, :2] - PLATE[1]).max(axis=1)
        off = np.maximum(beside, abs(xyz[:, 2] - PLATE[2]))
        assert np.quantile(off, 0.95) < 0.06


def test_noise_is_no_change(tmp_path: Path) -> None:
    write(tmp_path / "one", plate=False, seed=1)
    write(tmp_path / "two", plate=False, seed=2)
    changes = find_changes(read_result(tmp_path / "one"), read_result(tmp_path / "two"))
    assert not changes.added and not changes.gone
    assert not len(stored_points(tmp_path / "one" / CHANGES_NAME))
