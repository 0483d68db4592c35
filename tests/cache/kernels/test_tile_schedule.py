import pytest

from stream_recon.cache.kernels.tile_schedule import TileSchedule, schedule_tiles

H200_RESIDENT = 264


@pytest.mark.parametrize("resident_programs", [1, 7, 264])
@pytest.mark.parametrize("tiles", [1, 6, 7, 208, 256, 264, 272, 2096])
@pytest.mark.parametrize("blocks", [1, 3, 60, 600])
def test_every_tile_is_done_and_never_slower_than_in_full_waves(
    tiles: int, blocks: int, resident_programs: int
) -> None:
    schedule = schedule_tiles(tiles, blocks, resident_programs)
    assert schedule.full_tiles + schedule.split_tiles == tiles and schedule.full_tiles % resident_programs == 0
    assert schedule.programs == schedule.full_tiles + schedule.split_tiles * schedule.parts
    assert schedule.cost(blocks, resident_programs) <= -(-tiles // resident_programs) * blocks


def test_few_tiles_beyond_a_wave_are_split_into_many_parts() -> None:
    schedule = schedule_tiles(272, 600, H200_RESIDENT)
    assert (schedule.full_tiles, schedule.split_tiles) == (264, 8) and schedule.parts > 16
    assert schedule.cost(600, H200_RESIDENT) < 1.1 * 600


def test_a_full_wave_is_left_as_it_is() -> None:
    assert schedule_tiles(264, 600, H200_RESIDENT) == TileSchedule(264, 0, 1)
    assert schedule_tiles(256, 600, H200_RESIDENT).parts == 1


def test_short_tiles_are_not_split() -> None:
    assert schedule_tiles(24, 2, H200_RESIDENT).parts == 1
