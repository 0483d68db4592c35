"""Relative scales of depth maps."""

from dataclasses import replace

import numpy as np
import pytest

from stream_recon.app.core.camera_model import CameraModel
from stream_recon.app.slam.evidence.depth_ratios import EDGES, measure_edges
from stream_recon.app.slam.frame_data import DepthGrid


@pytest.mark.parametrize(("min_cells", "edges"), [(12, 1), (13, 0)])
def test_an_edge_needs_a_number_of_common_cells(min_cells: int, edges: int) -> None:
    u, v = np.arange(4, dtype=np.float32), np.arange(3, dtype=np.float32)
    grids = [DepthGrid(u, v, np.full((3, 4), z, np.float32)) for z in (2.0, 1.0)]
    config = replace(EDGES, min_cells=min_cells)
    found = measure_edges(CameraModel(4.0, 1.5, 1.0), np.stack([np.eye(4)] * 2), grids, np.zeros(2), [(0, 1)], config)
    assert len(found.log_ratio) == edges and np.allclose(found.log_ratio, np.log(2))
