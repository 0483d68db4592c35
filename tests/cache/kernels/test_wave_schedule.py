import pytest

from stream_recon.cache.kernels.wave_schedule import Waves, plan_waves

H200_PLACES = 264


@pytest.mark.parametrize("places", [1, 7, 264])
@pytest.mark.parametrize("tiles", [1, 6, 7, 208, 256, 264, 272, 2096])
@pytest.mark.parametrize("blocks", [1, 3, 60, 600])
def test_every_tile_is_done_and_never_slower_than_in_whole_waves(tiles: int, blocks: int, places: int) -> None:
    waves = plan_waves(tiles, blocks, places)
    assert waves.whole + waves.rest == tiles and waves.whole % places == 0
    assert waves.programs == waves.whole + waves.rest * waves.parts
    assert waves.cost(blocks, places) <= -(-tiles // places) * blocks


def test_few_tiles_beyond_a_wave_are_split_into_many_parts() -> None:
    waves = plan_waves(272, 600, H200_PLACES)
    assert (waves.whole, waves.rest) == (264, 8) and waves.parts > 16
    assert waves.cost(600, H200_PLACES) < 1.1 * 600


def test_a_full_wave_is_left_as_it_is() -> None:
    assert plan_waves(264, 600, H200_PLACES) == Waves(264, 0, 1)
    assert plan_waves(256, 600, H200_PLACES).parts == 1


def test_what_takes_no_time_is_not_split() -> None:
    assert plan_waves(24, 2, H200_PLACES).parts == 1
