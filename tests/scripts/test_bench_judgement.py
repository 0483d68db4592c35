"""Decisions of refinement on generated videos."""

import pytest


@pytest.mark.slow
def test_a_map_turns_back_from_what_moves() -> None:
    from bench.judgement import KINDS, TIE, Video, decide

    found = decide(Video(KINDS["moving object"][0], 13, 2))
    assert found is not None and found.mistake <= TIE
    assert found.chosen < found.network


@pytest.mark.slow
def test_noisy_matches_do_not_spoil_an_exact_network() -> None:
    from bench.judgement import KINDS, TIE, Video, decide

    found = decide(Video(KINDS["exact network"][2], 202, 0))
    assert found is not None and found.mistake <= TIE
