import numpy as np
import pytest

from stream_recon.configs.schema import load_preset
from training.schedule import MAX_TIME, RateConfig, Schedule, ScheduleConfig, Visibility, draw_times, learning_rate

PRESET = load_preset("small")
PROGRESS = np.linspace(0, 1, 400)


def schedule(seed: int = 0, **changes: object) -> Schedule:
    return Schedule(ScheduleConfig(**changes), PRESET.stream, seed)  # type: ignore[arg-type]


def test_plans_keep_the_budget_and_the_presets_image_limits() -> None:
    drawn = schedule()
    for plan in (drawn.draw(p) for p in PROGRESS):
        shape = plan.shape
        assert plan.clips * shape.frames == 384
        assert 2 <= shape.frames <= 128
        assert shape.rows * shape.columns <= PRESET.image.max_patches
        assert max(shape.rows, shape.columns) * PRESET.network.patch_size <= PRESET.image.max_side
        assert 1 <= plan.visibility.scale_frames <= shape.frames


def test_landscape_portrait_and_wide_grids_occur_and_shapes_are_few() -> None:
    shapes = ScheduleConfig().shapes()
    aspects = {np.sign(s.columns - s.rows) for s in shapes}
    assert aspects == {-1, 1} and any(s.columns >= 3 * s.rows for s in shapes)
    assert len(shapes) <= 12
    drawn = schedule(3)
    assert {drawn.draw(p).shape for p in np.linspace(0, 1, 2000)} == set(shapes)


def test_long_clips_come_late() -> None:
    drawn = schedule(1)
    lengths = [(p, drawn.draw(p).shape.frames) for p in np.linspace(0, 1, 2000)]
    assert max(n for p, n in lengths if p <= 0.6) <= 24
    assert max(n for p, n in lengths if p > 0.6) == 128


def test_a_continued_run_compiles_no_early_shape() -> None:
    alone = ScheduleConfig(early=((1.0, 12, 14, 14),), late_from=0.0)
    assert alone.shapes() == ScheduleConfig(early=alone.late, late_from=0.0).shapes()
    assert schedule(early=alone.early, late_from=0.0).draw(0.0).shape in alone.shapes()


def test_workers_with_one_seed_draw_the_same_plans() -> None:
    a, b, c = schedule(5), schedule(5), schedule(6)
    plans = [(a.draw(p), b.draw(p), c.draw(p)) for p in PROGRESS]
    assert all(x == y for x, y, _ in plans)
    assert any(x != z for x, _, z in plans)


def test_half_of_the_steps_see_what_the_preset_sees() -> None:
    drawn = schedule(2, early=((1.0, 16, 12, 16),), own_visibility=0.5, scale_frames=(1, 2, 6), windows=(16,))
    own = Visibility(PRESET.stream.scale_frames, PRESET.stream.window, PRESET.stream.camera_window)
    seen = [drawn.draw(0.0).visibility for _ in range(400)]
    assert 0.4 < np.mean([v == own for v in seen]) < 0.6
    assert {v.scale_frames for v in seen if v != own} == {1, 2, 6}
    always = schedule(own_visibility=1.0, early=((1.0, 16, 12, 16),))
    assert {always.draw(0.0).visibility for _ in range(20)} == {own}


def test_a_small_budget_leaves_out_clips_that_do_not_fit() -> None:
    assert max(s.frames for s in ScheduleConfig(frames_per_step=8).shapes()) == 8


@pytest.mark.parametrize("scale_frames", [1, 4, 8])
def test_times_increase_from_zero_and_half_of_them_count(scale_frames: int) -> None:
    times = draw_times(np.random.default_rng(0), 400, 8, scale_frames).numpy()
    assert (times[:, 0] == 0).all() and (np.diff(times, axis=1) >= 1).all()
    assert (times[:, :scale_frames] == np.arange(scale_frames)).all()
    counting = (times == np.arange(8)).all(axis=1)
    if scale_frames < 8:
        assert 0.4 < counting.mean() < 0.7
        assert 500 < times.max() < 1.1 * MAX_TIME + 100


def test_rate_warms_up_holds_and_ends_low() -> None:
    config = RateConfig(peak=2e-3, warmup_steps=100, hold_until=0.3, final=0.02)
    assert learning_rate(config, 0, 0.0) == pytest.approx(2e-5)
    assert learning_rate(config, 49, 0.01) == pytest.approx(1e-3)
    assert learning_rate(config, 100, 0.1) == learning_rate(config, 5000, 0.3) == pytest.approx(2e-3)
    assert learning_rate(config, 5000, 1.0) == pytest.approx(4e-5)
    rates = [learning_rate(config, 5000, p) for p in np.linspace(0.3, 1, 50)]
    assert (np.diff(rates) < 0).all()
