import copy
import random

import pytest

from stream_recon.cache.block_manager import SlidingWindow, TokenLog


def consistent(slots: SlidingWindow) -> bool:
    return slots.free + slots.allocated == slots.total


@pytest.mark.parametrize(("pinned", "window", "first"), [(1, 1, 1), (3, 4, 3), (3, 4, 2), (8, 64, 8)])
def test_every_slot_is_either_free_or_allocated(pinned: int, window: int, first: int) -> None:
    chance = random.Random(pinned * 100 + window)
    slots = SlidingWindow(pinned, window)
    slots.begin(first)
    assert consistent(slots)
    slots.commit()
    for _ in range(500):
        allocation = slots.begin(1, evict_first=chance.random() < 0.3)
        assert consistent(slots)
        assert len(set(allocation.block_table)) == len(allocation.block_table) <= pinned + window + 1
        assert set(allocation.slot_mapping) <= set(allocation.block_table)
        slots.commit() if chance.random() < 0.5 else slots.rollback()
        assert consistent(slots)
        assert slots.allocated <= first + window


def test_a_reset_manager_equals_a_new_one() -> None:
    slots, log = SlidingWindow(2, 3), TokenLog(2, 8)
    for manager in (slots, log):
        new = copy.deepcopy(vars(manager))
        manager.begin(2)
        manager.commit()
        for _ in range(20):
            manager.begin(1)
            manager.commit()
        manager.begin(1)
        assert vars(manager) != new
        manager.reset()
        assert vars(manager) == new


def test_pinned_frames_are_always_visible_and_the_window_is_the_latest() -> None:
    slots, owner = SlidingWindow(2, 3), {}
    allocation = slots.begin(2)
    owner.update(zip(allocation.slot_mapping, ("scale 0", "scale 1"), strict=True))
    slots.commit()
    for frame in range(10):
        allocation = slots.begin(1)
        owner[allocation.slot_mapping[0]] = str(frame)
        expected = {"scale 0", "scale 1", *(str(f) for f in range(max(0, frame - 3), frame + 1))}
        assert {owner[slot] for slot in allocation.block_table} == expected
        slots.commit()


def test_a_window_that_counts_the_new_frame_hides_the_oldest_one_but_keeps_it_until_the_commit() -> None:
    slots = SlidingWindow(1, 2)
    for _ in range(3):
        slots.begin(1)
        slots.commit()
    full = slots.begin(1).block_table
    slots.rollback()
    hidden = slots.begin(1, evict_first=True).block_table
    slots.rollback()
    assert len(hidden) == len(full) - 1
    assert slots.begin(1).block_table == full


def test_a_rolled_back_step_leaves_the_bookkeeping_as_it_was() -> None:
    slots, log = SlidingWindow(2, 3), TokenLog(2, 8)
    for count in (2, 1, 1, 1, 1):
        slots.begin(count)
        slots.commit()
        log.begin(count)
        log.commit()
    first = slots.begin(1, evict_first=True), log.begin(1)
    slots.rollback()
    log.rollback()
    before = copy.deepcopy((vars(slots), vars(log)))
    for _ in range(5):
        again = slots.begin(1, evict_first=True), log.begin(1)
        assert again[0] is first[0] and again[1] is first[1]  # what was planned for it still holds
        slots.rollback()
        log.rollback()
    assert (vars(slots), vars(log)) == before


@pytest.mark.parametrize("window", [1, 4, 9])
def test_visible_slots_are_one_run_when_nothing_is_hidden(window: int) -> None:
    slots = SlidingWindow(3, window)
    slots.begin(3)
    slots.commit()
    for frame in range(40):
        visible = sorted(slots.begin(1).block_table)
        assert visible == list(range(visible[0], visible[0] + len(visible)))
        slots.commit() if frame % 3 else slots.rollback()


def test_the_token_log_stays_in_its_budget_and_keeps_pinned_and_recent_entries() -> None:
    log, frames, committed = TokenLog(4, 32), list[int](), 0
    for step in range(10_000):
        count = 4 if step == 0 else 1
        assert len(log.begin(count).block_table) <= log.capacity
        frames += range(committed, committed + count)
        committed += count
        kept = log.commit()
        if kept is not None:
            frames = [frames[entry] for entry in kept]
        assert len(frames) == log.entries < log.capacity
        assert frames == sorted(frames)
        assert frames[:4] == [0, 1, 2, 3]
        assert frames[-8:] == list(range(committed - 8, committed)) or committed < 12
