"""Placing of many results: which are aligned with which, composed similarities, and what stays out."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stream_recon.app.core import so3
from stream_recon.app.core.transforms import Similarity
from stream_recon.app.core.transforms import align as align_points
from stream_recon.app.localization import placing
from stream_recon.app.localization.alignment import NOTHING, Alignment, NotAligned
from stream_recon.app.localization.placing import PlacedResult, PlacingConfig, place_results, similarities
from stream_recon.app.slam.matching.features import Features

COUNT, KEYFRAMES, EACH = 16, 4, 60


class Place:
    """A part of a street: each keyframe shows things of its own, and the first half those of the part before."""

    def __init__(self, number: int, street: int, noise: float = 0.0) -> None:
        self.number, self.street, self.noise = number, street, noise

    def __len__(self) -> int:
        return KEYFRAMES

    def keyframe(self, row: int) -> Any:
        part = self.number * KEYFRAMES // 2 + row
        looks = np.abs(np.random.default_rng([self.street, part]).normal(size=(EACH, 128))).astype(np.float32)
        looks /= np.linalg.norm(looks, axis=1, keepdims=True)
        own = np.random.default_rng([self.street, part, self.number])
        looks = np.abs(looks + self.noise * own.normal(size=looks.shape)).astype(np.float32)
        looks /= np.linalg.norm(looks, axis=1, keepdims=True)
        return SimpleNamespace(features=Features(np.zeros((EACH, 2), np.float32), looks, np.ones(EACH, np.float32)))


@pytest.fixture
def aligned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Pairs that are aligned. A result lies a metre before the one after it, and is twice as large."""
    pairs = []

    def align(first: Place, second: Place) -> Alignment | NotAligned:
        pairs.append((first.number, second.number))
        step = second.number - first.number
        if first.street != second.street or abs(step) != 1:
            return NOTHING
        forward = Similarity(0.5, np.eye(3), np.array([1.0, 0.0, 0.0]))
        return Alignment(forward if step > 0 else forward.inverse(), 5, 100, step > 0)

    monkeypatch.setattr(placing, "align_results", align)
    return pairs


def test_a_street_is_placed_with_few_alignments(aligned: list[tuple[int, int]]) -> None:
    told: list[int] = []
    places: list[Any] = [Place(number, 0) for number in range(COUNT)]
    placed = place_results([lambda place=place: place for place in places], lambda number, _: told.append(number))
    assert sorted(placed) == list(range(COUNT)) and sorted(told) == list(range(1, COUNT))
    S = Similarity.identity()
    for number in range(1, COUNT):
        S = S @ Similarity(0.5, np.eye(3), np.array([1.0, 0.0, 0.0]))
        assert np.allclose(placed[number].S_first_own.matrix, S.matrix)
        assert placed[number].is_same_camera
    assert len(aligned) < 5 * COUNT < COUNT * (COUNT - 1) / 2


def test_neighbours_are_found_among_many_whose_features_are_noisy() -> None:
    count = 60
    places: list[Any] = [Place(number, 2, noise=0.04) for number in range(count)]
    similarity = similarities(lambda number: places[number], count)
    rank = np.argsort(np.argsort(-similarity, axis=1), axis=1)
    assert max(int(rank[k, k + 1]) for k in range(count - 1)) < PlacingConfig().partners


def test_placing_without_loops_takes_fewer_alignments(aligned: list[tuple[int, int]]) -> None:
    config = PlacingConfig(max_loops=0)
    places: list[Any] = [Place(number, 1) for number in range(COUNT)]
    placed = place_results([lambda place=place: place for place in places], lambda number, _: None, config=config)
    assert len(placed) == COUNT
    assert len(aligned) < 3 * COUNT < COUNT * (COUNT - 1) / 2


def test_results_of_another_street_stay_out(aligned: list[tuple[int, int]]) -> None:
    places = [Place(number, number % 2) for number in range(COUNT)]
    for place in places:
        place.number //= 2
    placed = place_results([lambda place=place: place for place in places], lambda number, _: None)
    assert sorted(placed) == list(range(0, COUNT, 2))
    assert len(aligned) <= COUNT * PlacingConfig().partners


def test_few_results_are_all_tried(aligned: list[tuple[int, int]]) -> None:
    places = [Place(number, 0) for number in (0, 2, 1)]
    placed = place_results([lambda place=place: place for place in places], lambda number, _: None)
    assert placed[2] == PlacedResult(placed[2].S_first_own, True, 0, 5)
    assert placed[1].known == 2


def test_an_alignment_of_few_keyframes_waits_for_a_better_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results 0 and 2 share a view that is repeated elsewhere; 1 lies between them."""
    right, wrong = (Similarity(1.0, np.eye(3), np.array([x, 0.0, 0.0])) for x in (1.0, 5.0))
    known = {(0, 1): Alignment(right, 20, 900), (0, 2): Alignment(wrong, 3, 60), (1, 2): Alignment(right, 15, 800)}

    def align(first: Place, second: Place) -> Alignment | NotAligned:
        return known.get((first.number, second.number), NOTHING)

    monkeypatch.setattr(placing, "align_results", align)
    monkeypatch.setattr(Place, "__len__", lambda place: 30)
    for order in ((0, 1, 2), (0, 2, 1)):
        places = [Place(number, 0) for number in order]
        placed = place_results([lambda place=place: place for place in places], lambda number, _: None)
        assert np.allclose(placed[order.index(2)].S_first_own.translation, (2.0, 0.0, 0.0))
        assert placed[order.index(2)].known == order.index(1)
    del known[(1, 2)]
    places = [Place(number, 0) for number in (0, 1, 2)]
    placed = place_results([lambda place=place: place for place in places], lambda number, _: None)
    assert placed[2].known == 0, "the only one there is"


def test_a_place_that_looks_alike_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "align_results", lambda first, second: NotAligned("fits at two places", True))
    places = [Place(number, 0) for number in (0, 1)]
    told: list[tuple[int, int, str]] = []
    placed = place_results(
        [lambda place=place: place for place in places], lambda number, _: None, lambda *each: told.append(each)
    )
    assert sorted(placed) == [0] and told == [(1, 0, "fits at two places")]


def test_the_error_of_a_ring_of_results_is_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each alignment turns a little too far; only the one that closes the ring tells."""
    turn = so3.exp(np.array([0.0, 2 * np.pi / COUNT, 0.0]))
    step = Similarity(1.0, turn, np.array([1.0, 0.0, 0.0]))
    wrong = Similarity(1.01, turn @ so3.exp(np.array([0.0, 0.01, 0.0])), np.array([1.01, 0.0, 0.0]))

    def align(first: Place, second: Place) -> Alignment | NotAligned:
        forward = (second.number - first.number) % COUNT
        if forward not in (1, COUNT - 1):
            return NOTHING
        return Alignment(wrong if forward == 1 else wrong.inverse(), 5, 100, True, 1.0)

    monkeypatch.setattr(placing, "align_results", align)
    places: list[Any] = [Ring(number, 1) for number in range(COUNT)]
    placed = place_results([lambda place=place: place for place in places], lambda number, _: None)
    truth = [Similarity.identity()]
    for _ in range(COUNT - 1):
        truth.append(truth[-1] @ step)
    found = np.array([placed[number].S_first_own.translation for number in range(COUNT)])
    expected = np.array([each.translation for each in truth])
    error = np.linalg.norm(align_points(found, expected).apply(found) - expected, axis=1)
    half = COUNT // 2
    chain = [Similarity.identity()]
    for _ in range(half):
        chain.append(chain[-1] @ wrong)
    back = [Similarity.identity()]
    for _ in range(COUNT - half - 1):
        back.append(back[-1] @ wrong.inverse())
    alone = np.array([each.translation for each in [*chain, *back[:0:-1]]])
    before = np.linalg.norm(align_points(alone, expected).apply(alone) - expected, axis=1)
    assert error.max() < 0.3 * before.max()


class Ring(Place):
    """A part of a round street."""

    def keyframe(self, row: int) -> Any:
        part = (self.number * KEYFRAMES // 2 + row) % (COUNT * KEYFRAMES // 2)
        return Place(0, self.street).keyframe(part)
