"""Photo tiles: read from their file, and seen on walls."""

from pathlib import Path

import cv2
import numpy as np
import torch

from training.synthetic import SceneGenerator
from training.synthetic.textures import load_tiles, photo


def write_tiles(path: Path) -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]  # BGR
    files = [cv2.imencode(".png", np.full((256, 256, 3), c, np.uint8))[1].tobytes() for c in colours]
    np.savez(path, data=np.frombuffer(b"".join(files), np.uint8), length=np.array([len(f) for f in files]))


def test_tiles_keep_their_colours_at_every_level(tmp_path: Path) -> None:
    write_tiles(tmp_path / "tiles.npz")
    tiles = load_tiles(tmp_path / "tiles.npz", torch.device("cpu"))
    assert tiles.count == 3
    layer = torch.tensor([0, 1, 2], dtype=torch.int32)
    for level in range(6):
        where = torch.tensor([0.3, 1.7, -2.2])
        colours = photo(tiles.texels, tiles.starts, layer, where, where, torch.full((3,), float(level)))
        expected = torch.eye(3).flip(0)
        torch.testing.assert_close(torch.stack(colours, 1), expected)


def test_scenes_show_tiles(tmp_path: Path) -> None:
    write_tiles(tmp_path / "tiles.npz")
    size = {"clips": 3, "frames": 1, "height": 28, "width": 28}
    plain = SceneGenerator("cpu", 1, degrade=False).render(**size)
    hung = SceneGenerator("cpu", 1, tmp_path / "tiles.npz", degrade=False).render(**size)
    assert torch.equal(plain.depth, hung.depth)
    assert not torch.equal(plain.images, hung.images)
