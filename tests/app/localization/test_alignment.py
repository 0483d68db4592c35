"""Alignment of two results: places that look alike are kept apart, true joins stay."""

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.localization.alignment import NOTHING, Alignment, NotAligned, align_results
from tests.app.localization.streets import BAY, WIDTH, street_map

OWN = Similarity(1.7, so3.exp(np.array([0.3, -0.8, 0.2])), np.array([4.0, -2.0, 1.0]))
"""World of the second walk."""


def begins_at(found: Alignment | NotAligned) -> float:
    """House of the first street where the second walk's street begins."""
    assert isinstance(found, Alignment), found
    street = found.S_first_second @ OWN
    assert street.scale == pytest.approx(1, rel=0.02)
    return float(street.apply(np.zeros((1, 3)))[0, 0]) / WIDTH


@pytest.mark.parametrize(
    ("first", "second", "begin"),
    [((1, 2), (1, 2), 0), ((1, 2, 3), (2, 3, 4), 1), ((1, 2, 3), (9, 1, 2), -1), ((1, 2, 3, 4, 5), (4, 5, 6, 7), 3)],
)
def test_walks_that_overlap_are_aligned(first: tuple[int, ...], second: tuple[int, ...], begin: int) -> None:
    found = align_results(street_map(first, 0), street_map(second, 1, OWN))
    assert begins_at(found) == pytest.approx(begin, abs=0.03)


def test_a_walk_in_other_light_is_aligned() -> None:
    found = align_results(street_map((1, 2, 3), 0), street_map((1, 2, 3), 1, OWN, recognized=0.35))
    assert begins_at(found) == pytest.approx(0, abs=0.05)


def test_other_streets_share_nothing() -> None:
    assert align_results(street_map((1, 2), 0), street_map((3, 4), 1, OWN)) == NOTHING


def test_two_places_that_look_the_same_are_kept_apart() -> None:
    """Both walks show a house of one look, between others: laid onto one another, the others would be contradicted."""
    found = align_results(street_map((5, 1, 2, 3), 0), street_map((6, 1, 7, 8), 1, OWN))
    assert isinstance(found, NotAligned) and found.looks_alike
    assert "show something else" in found.reason


def test_what_stands_in_free_space_is_another_place() -> None:
    found = align_results(street_map((1, 2), 0), street_map((BAY + 1, BAY + 2), 1, OWN))
    assert isinstance(found, NotAligned) and found.looks_alike
    assert "free space" in found.reason


def test_a_walk_that_fits_at_two_places_is_kept_apart() -> None:
    found = align_results(street_map((1, 2, 3, 4, 1, 2), 0), street_map((1, 2), 1, OWN))
    assert isinstance(found, NotAligned) and found.looks_alike
    assert "two places" in found.reason


def test_what_tells_two_places_apart_decides() -> None:
    first = street_map((1, 2, 3, 1, 4), 0)
    for second, begin in (((1, 2, 3), 0), ((1, 4), 3)):
        assert begins_at(align_results(first, street_map(second, 1, OWN))) == pytest.approx(begin, abs=0.05)
