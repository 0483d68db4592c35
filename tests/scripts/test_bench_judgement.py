"""Decisions of refinement on generated videos."""

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind, number, seed, draw", [("moving object", 0, 13, 2), ("moving object for a while", 3, 2, 0)]
)
def test_a_map_turns_back_from_what_moves(kind: str, number: int, seed: int, draw: int) -> None:
    from bench.judgement import KINDS, TIE, Video, decide

    found = decide(Video(KINDS[kind][number], 100 * number + seed, draw))
    assert found is not None and found.mistake <= TIE
    assert found.chosen < found.network


@pytest.mark.slow
def test_noisy_matches_do_not_spoil_an_exact_network() -> None:
    from bench.judgement import KINDS, TIE, Video, decide

    found = decide(Video(KINDS["exact network"][2], 202, 0))
    assert found is not None and found.mistake <= TIE
