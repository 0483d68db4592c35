"""Localization of images in a refined result: right poses, honest errors, and refusals."""

from pathlib import Path

import cv2
import numpy as np
import pytest

from stream_recon.app.core.rig import VIEW_STRIDE, Rig
from stream_recon.app.core.transforms import Similarity, rotation_angle_deg
from stream_recon.app.core.types import Frame, Intrinsics
from stream_recon.app.localization.config import DEFAULT_LOCALIZATION
from stream_recon.app.localization.localize import Localization, LocalizationMap, NotLocalized
from stream_recon.app.localization.rig_frames import RigLocalizer
from stream_recon.app.localization.tracking import FilmLocalizer
from stream_recon.app.result.feature_map import MAP_NAME, read_map
from stream_recon.app.result.folder import read_result
from stream_recon.configs.errors import InputError, OutputError
from tests.app.localization.places import to_truth, write_refined
from tests.app.slam.room import FOCAL, ROOM, SIZE, picture, pose, walk

WALK = walk(16)
KNOWN = Intrinsics(FOCAL, FOCAL, SIZE[0] / 2, SIZE[1] / 2)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalizationMap, Similarity, Path]:
    folder = tmp_path_factory.mktemp("place") / "room"
    write_refined(folder, WALK)
    return LocalizationMap.open(folder), to_truth(folder, WALK), folder


def queries() -> list[np.ndarray]:
    """Poses between and beside those of the map."""
    return [pose((0.5, 0.1, -0.4), 0.35, 0.1), pose((0.9, -0.1, -0.3), 0.7, 0.0), pose((0.2, 0.0, -0.9), 0.1, 0.05)]


def test_new_views_are_found_with_and_without_their_camera(place: tuple[LocalizationMap, Similarity, Path]) -> None:
    here, S, _ = place
    for known in (KNOWN, None):
        for T in queries():
            found = here.localize(picture(T, draw=3)[0], known)
            assert isinstance(found, Localization)
            mine = S.move_pose(found.T_world_camera)
            off = np.linalg.norm(mine[:3, 3] - T[:3, 3])
            assert off < 0.04, "2 % of the usual depth"
            assert off < 3 * S.scale * found.position_sigma
            assert rotation_angle_deg(mine[:3, :3].T @ T[:3, :3]) < 0.7
            assert found.intrinsics.fx == pytest.approx(FOCAL, rel=0.02)
            assert set(found.frames) <= set(range(len(WALK)))


@pytest.mark.parametrize(("query", "border"), [(0, 40), (1, 110)])
def test_a_picture_of_another_size_and_field_of_view(
    place: tuple[LocalizationMap, Similarity, Path], query: int, border: int
) -> None:
    here, S, _ = place
    T = queries()[query]
    top = border * SIZE[1] // SIZE[0]
    cut = picture(T, draw=4)[0][top : SIZE[1] - top, border : SIZE[0] - border]
    zoom = SIZE[0] / cut.shape[1]
    found = here.localize(cv2.resize(cut, SIZE, interpolation=cv2.INTER_CUBIC))
    assert isinstance(found, Localization)
    assert np.linalg.norm(S.move_pose(found.T_world_camera)[:3, 3] - T[:3, 3]) < 0.06
    assert found.intrinsics.fx == pytest.approx(zoom * FOCAL, rel=0.03)


def test_other_places_are_refused(place: tuple[LocalizationMap, Similarity, Path]) -> None:
    here, _, _ = place
    for seed in range(6):
        foreign = np.asarray(cv2.resize(ROOM.textures[seed][:, ::-1], SIZE), np.uint8)
        assert isinstance(here.localize(np.repeat(foreign[..., None], 3, axis=2)), NotLocalized)
    blank = here.localize(np.full((SIZE[1], SIZE[0], 3), 128, np.uint8))
    assert isinstance(blank, NotLocalized) and "texture" in blank.reason


def test_frames_of_a_rig_have_one_pose_by_all_views(place: tuple[LocalizationMap, Similarity, Path]) -> None:
    here, S, _ = place
    yaws = (0.0, 0.5, np.pi)
    rig = Rig.of_turns(("front", "right", "back"), np.array([pose((0, 0, 0), yaw)[:3, :3] for yaw in yaws]))
    frames = RigLocalizer(here, rig)
    blank, foreign = np.full((SIZE[1], SIZE[0], 3), 128, np.uint8), picture(queries()[2], draw=3)[0]
    for view, turned in enumerate(rig.T_body_view):
        shown = [picture(T @ turned, draw=3)[0] for T in queries()] + [
            blank,
            foreign if view == 1 else picture(queries()[0] @ turned)[0],
        ]
        for number, rgb in enumerate(shown):
            frames.push(Frame(view * VIEW_STRIDE + number, number / 10, rgb), KNOWN)
    found = [*frames.located()]
    assert [(frame.index, frame.timestamp) for frame, _ in found] == [(k, k / 10) for k in range(5)]
    alone = [here.localize(picture(T, draw=3)[0], KNOWN) for T in queries()]
    for T, (_, both), one in zip(queries(), found[:3], alone, strict=True):
        assert isinstance(both, Localization) and isinstance(one, Localization) and both.inliers > one.inliers
        mine = S.move_pose(both.T_world_camera)
        off = np.linalg.norm(mine[:3, 3] - T[:3, 3])
        assert (
            off < min(0.04, 3 * S.scale * both.position_sigma) and rotation_angle_deg(mine[:3, :3].T @ T[:3, :3]) < 0.7
        )
    for (_, other), reason in zip(found[3:], ("texture", "views show different places"), strict=True):
        assert isinstance(other, NotLocalized) and reason in other.reason


@pytest.mark.slow
def test_a_film_is_tracked_and_found_again_after_a_covered_lens(
    place: tuple[LocalizationMap, Similarity, Path],
) -> None:
    here, S, _ = place
    film = FilmLocalizer(here)
    truth = walk(120)[28:54]
    for number, T in enumerate(truth):
        covered = 10 <= number < 13
        rgb = np.zeros((SIZE[1], SIZE[0], 3), np.uint8) if covered else picture(T, draw=5)[0]
        found = film.push(rgb)
        assert isinstance(found, NotLocalized) == covered, number
        if isinstance(found, Localization):
            assert np.linalg.norm(S.move_pose(found.T_world_camera)[:3, 3] - T[:3, 3]) < 0.05, number
            limits = DEFAULT_LOCALIZATION.image
            assert found.inliers >= limits.min_inliers, number
            assert found.rotation_sigma_deg <= limits.max_rotation_sigma_deg, number


def test_the_map_is_small_and_belongs_to_its_refinement(place: tuple[LocalizationMap, Similarity, Path]) -> None:
    here, _, folder = place
    assert (folder / MAP_NAME).stat().st_size < 60_000 * len(here)
    result = read_result(folder)
    assert read_map(folder, result.refinement_id) is not None
    assert read_map(folder, "0123456789abcdef") is None


def test_results_without_a_map_or_with_a_damaged_one_are_refused(
    place: tuple[LocalizationMap, Similarity, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in place[2].iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    content = (folder / MAP_NAME).read_bytes()
    (folder / MAP_NAME).write_bytes(content[: len(content) // 2])
    with pytest.raises(OutputError, match="damaged"):
        LocalizationMap.open(folder)
    (folder / MAP_NAME).unlink()
    with pytest.raises(InputError, match="refine"):
        LocalizationMap.open(folder)
