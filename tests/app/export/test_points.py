import numpy as np

from stream_recon.app.export.points import OrderedPoints


def test_the_centre_is_not_biased_to_dense_points() -> None:
    random = np.random.default_rng(0)
    near, far = random.uniform((0, 0, 0), (1, 1, 1), (900, 3)), random.uniform((1, 0, 0), (4, 1, 1), (300, 3))
    xyz = np.concatenate([near, far]).astype(np.float32)
    found = OrderedPoints(xyz, np.zeros((len(xyz), 3), np.uint8), [], np.array([len(xyz)]), 0.1)
    assert np.abs(found.centre - (2, 0.5, 0.5)).max() < 0.3
    assert 3 < found.extent < 4.4
