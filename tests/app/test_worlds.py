from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.worlds import depth_ratio
from tests.app.boxroom import room_result


def test_the_ratio_of_two_depth_maps_leaves_sky_out() -> None:
    room = room_result(0)
    rows = np.arange(room.depth.shape[0])[:, None]
    sky = np.broadcast_to(rows < 0.3 * len(rows), room.depth.shape)
    confidence = np.where(sky, 0.0, 1.0).astype(np.float32)
    # As far as it comes, and otherwise in every run.
    earlier = replace(room, depth=np.where(sky, 300, 2.5 * room.depth), confidence=confidence)
    later = replace(room, depth=np.where(sky, 50, room.depth), confidence=confidence)
    assert depth_ratio(earlier, later) == pytest.approx(2.5)


def test_no_ratio_without_depth() -> None:
    room = room_result(0)
    assert depth_ratio(room, replace(room, depth=np.zeros_like(room.depth))) is None
