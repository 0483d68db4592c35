"""Fitted furniture keeps its promises: it stays in its room, off doors and windows, and fits together."""

import pytest
import torch
from torch import Tensor

from training.synthetic.cameras import SCAN, WALK, Path, draw_path
from training.synthetic.draws import Draws
from training.synthetic.fitted import MODULES, ON_TOPS, RUNS
from training.synthetic.furniture import ITEMS
from training.synthetic.layout import with_height
from training.synthetic.layout_room import draw_rooms
from training.synthetic.layout_runs import Runs, draw_runs
from training.synthetic.parts import Catalogue, Objects
from training.synthetic.walls import OccupiedWalls, Walls, draw_openings

ROOMS = 300


@pytest.fixture(scope="module")
def drawn() -> tuple[Runs, Walls, Tensor, OccupiedWalls, Path, Tensor, Catalogue]:
    draws = Draws(torch.device("cpu"), 4)
    catalogue = Catalogue(RUNS + MODULES + ON_TOPS + ITEMS, draws)
    half = torch.cat([draws.uniform(1.5, 3.6, ROOMS, 2), draws.uniform(1.15, 1.6, ROOMS, 1)], 1)
    walls = Walls(torch.cat([torch.zeros(ROOMS, 2), half[:, 2:]], 1), half)
    path = draw_path(draws, {WALK: 1.0, SCAN: 1.0}, 8, torch.full((ROOMS,), 2.0))
    path = with_height(path, torch.full((ROOMS, 8), 1.4), torch.zeros(ROOMS, 2))
    air, openings = draw_openings(draws, walls, 2 * half[:, 2], ROOMS)
    clear = draws.uniform(0.15, 0.5, ROOMS)
    runs = draw_runs(draws, catalogue, walls, 2 * half[:, 2], openings, path, clear)
    return runs, walls, air, openings, path, clear, catalogue


def corners(objects: Objects) -> tuple[Tensor, Tensor]:
    """Lowest and highest corners [B, O, 3] of the objects' boxes, in the world."""
    signs = torch.tensor([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (0.0, 1.0)])
    local = signs * objects.size[:, :, None]
    points = objects.position[:, :, None] + torch.einsum("boij,bokj->boki", objects.rotation, local)
    return points.amin(2), points.amax(2)


def test_many_rooms_have_runs_and_many_go_around_a_corner(drawn: tuple[Runs, Walls]) -> None:
    runs = drawn[0]
    legs = runs.occupied.width > 0
    assert 0.3 < legs.any(1).float().mean() < 0.75
    assert legs.all(1).float().mean() > 0.12


def test_runs_and_what_stands_on_them_stay_in_the_room(drawn: tuple[Runs, Walls]) -> None:
    runs, walls = drawn[:2]
    for objects, slack in ((runs.objects, 0.01), (runs.things, 0.25)):
        low, high = corners(objects)
        inside = (low >= walls.middle[:, None] - walls.half[:, None] - slack) & (
            high <= walls.middle[:, None] + walls.half[:, None] + slack
        )
        assert torch.isfinite(low).all() and torch.isfinite(high).all()
        assert inside.all(-1)[objects.present].all()


def test_runs_leave_doors_and_windows_free(drawn: tuple[Runs, Walls, Tensor, OccupiedWalls]) -> None:
    runs, _, air, openings = drawn[:4]
    low, high = corners(runs.objects)
    air = air.clone()
    air[:, 2:, 2] = torch.maximum(air[:, 2:, 2], runs.sill.gather(1, openings.side[:, 1:]))
    for number, box in enumerate((0, 2, 3)):  # doorway, windows
        start, end = air[:, box, None, :3], air[:, box, None, 3:6]
        # What is before an opening by 0.4 m is free, too.
        side = openings.side[:, number, None]
        inward = torch.stack([1.0 * (side == 0), 1.0 * (side == 2), 0.0 * side], -1)
        back = torch.stack([1.0 * (side == 1), 1.0 * (side == 3), 0.0 * side], -1)
        meets = ((low < end + 0.4 * back - 0.001) & (high > start - 0.4 * inward + 0.001)).all(-1)
        meets = meets & (air[:, box, 6] > 0)[:, None] & runs.objects.present
        assert not meets.any(), box


def test_cameras_are_clear_of_runs(drawn: tuple[Runs, Walls, Tensor, OccupiedWalls, Path, Tensor]) -> None:
    runs, _, _, _, path, clear = drawn[:6]
    low, high = corners(runs.objects)
    gap = torch.maximum(low[:, :, None] - path.position[:, None], path.position[:, None] - high[:, :, None])
    gap = gap.amax(-1).amin(-1)
    assert (gap > clear[:, None])[runs.objects.present].all()


def test_modules_fill_their_legs_side_by_side(drawn: tuple[Runs]) -> None:
    objects = drawn[0].objects
    low, high = corners(objects)
    for leg in range(2):
        here = objects.present[:, leg]
        modules = slice(2 + 5 * leg, 7 + 5 * leg)
        inside = (low[:, modules] > low[:, leg, None] - 1e-3) & (high[:, modules] < high[:, leg, None] + 1e-3)
        assert inside[..., :2].all(-1)[objects.present[:, modules] & here[:, None]].all()
        # No two of one leg overlap.
        for i in range(2 + 5 * leg, 6 + 5 * leg):
            both = objects.present[:, i] & objects.present[:, i + 1]
            overlap = torch.minimum(high[:, i], high[:, i + 1]) - torch.maximum(low[:, i], low[:, i + 1])
            assert (overlap[both].amin(-1) < 1e-3).all()
    both = objects.present[:, 0] & objects.present[:, 1]
    overlap = torch.minimum(high[:, 0], high[:, 1]) - torch.maximum(low[:, 0], low[:, 1])
    assert (overlap[both].amin(-1) < 0.01).all()


def test_one_kitchen_has_one_look(drawn: tuple[Runs, Walls, Tensor, OccupiedWalls, Path, Tensor, Catalogue]) -> None:
    objects, catalogue = drawn[0].objects, drawn[6]
    doors = objects.template == catalogue.names.index("base_door")
    assert doors.any() and (objects.look[doors] == 0).all()
    ovens = objects.template == catalogue.names.index("base_oven")
    assert (objects.look[ovens] > 0).all()


def test_furniture_keeps_off_runs() -> None:
    from training.synthetic import SceneGenerator

    generator = SceneGenerator("cpu", 8, degrade=False)
    layout = draw_rooms(generator.draws, generator.catalogue, 60, 4)
    low, high = corners(layout.objects)
    legs, furniture = slice(0, 2), slice(36, 52)  # after the run's pieces and what stands on it
    here = layout.objects.present[:, legs, None] & layout.objects.present[:, None, furniture]
    overlap = torch.minimum(high[:, legs, None], high[:, None, furniture]) - torch.maximum(
        low[:, legs, None], low[:, None, furniture]
    )
    # Of neighbours around a corner some may still meet; along one wall none does.
    facing = layout.objects.rotation[:, legs, None, :, 1], layout.objects.rotation[:, None, furniture, :, 1]
    same = (facing[0] * facing[1]).sum(-1) > 0.9
    assert (overlap[here & same].amin(-1) < 0.12).all()


def test_frames_fit_their_openings() -> None:
    from training.synthetic import SceneGenerator

    generator = SceneGenerator("cpu", 8, degrade=False)
    layout = draw_rooms(generator.draws, generator.catalogue, 60, 4)
    names = generator.catalogue.names
    low, high = corners(layout.objects)
    frames = torch.tensor([names.index(name) for name in ("window_frame", "barred_frame")])
    found = torch.isin(layout.objects.template, frames) & layout.objects.present
    assert found.sum() > 20
    for clip, index in found.nonzero().tolist():
        boxes = layout.air[clip, 3:]
        wide = (high[clip, index] - low[clip, index])[:2].amax()
        fits = (boxes[:, 5] - high[clip, index, 2]).abs() + (boxes[:, 2] - low[clip, index, 2]).abs() < 1e-3
        fits = fits & ((boxes[:, 3:5] - boxes[:, :2]).amax(1) - wide).abs().lt(1e-2)
        assert fits.any()
