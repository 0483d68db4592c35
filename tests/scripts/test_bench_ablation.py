"""Changes of configurations that the benchmark of mechanisms makes."""

import pytest

from bench.ablation import Run, Tuning, mechanisms, switches


def test_each_mechanism_is_one_change_of_a_configuration() -> None:
    found = mechanisms([], ["online.map.active=20"])
    assert {"online.loops", "online.local_ba", "stereo.fill", "online.map.active=20"} <= found.keys()
    for text in found.values():
        assert Tuning().changed(text) != Tuning()
    assert list(mechanisms(["online.loops"], [])) == ["online.loops"]


def test_a_change_sets_one_value_alone() -> None:
    changed = Tuning().changed("online.loops.is_enabled=false")
    assert not changed.online.loops.is_enabled and changed.online.local_ba == Tuning().online.local_ba
    assert "online.loops.is_enabled" in switches(Tuning()) and "online.loops.is_enabled" not in switches(changed)


@pytest.mark.parametrize("wrong", ["online.loop.is_enabled=false", "online.loops.is_enabled=3", "online.loops", "a=b"])
def test_what_is_no_change_is_refused(wrong: str) -> None:
    with pytest.raises(SystemExit, match="no change of a configuration"):
        Tuning().changed(wrong)


def test_a_run_begins_with_the_first_stage_that_differs() -> None:
    stages = [Run(None, text).first_stage for text in ("", "stereo.fill.is_enabled=false", "offline.min_keyframes=4")]  # type: ignore[arg-type]
    assert stages == [0, 2, 1]
