import pytest
import torch

from stream_recon.cache.clip import FULL, HIDDEN, SPECIAL_ONLY, _block_mask, _dense_mask, frame_visibility

CPU = torch.device("cpu")


def test_a_frame_sees_scale_frames_window_and_itself_and_specials_of_all_the_past() -> None:
    seen = frame_visibility(8, 2, 3, CPU)
    assert seen[0].tolist() == [FULL, FULL] + [HIDDEN] * 6
    assert seen[7].tolist() == [FULL, FULL, SPECIAL_ONLY, SPECIAL_ONLY, FULL, FULL, FULL, FULL]
    assert (seen.triu(1)[2:] == HIDDEN).all()


@pytest.mark.parametrize(("scale_frames", "window"), [(1, 1), (2, 3), (6, 2)])
def test_the_block_sparse_mask_is_the_dense_one(scale_frames: int, window: int) -> None:
    key = (6, 9, 4, scale_frames, window, CPU)
    length = 6 * 9
    query, column = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
    zero = torch.zeros_like(query)
    visible = _block_mask(*key).mask_mod(zero, zero, query, column)
    assert torch.equal(visible, _dense_mask(*key))
