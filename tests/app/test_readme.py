"""What the README shows for Python runs as it stands there."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "app" / "sample" / "walkthrough.mp4"


def blocks() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "my_images" in block]


def test_the_example_with_images_runs() -> None:
    with open_source(str(SAMPLE), FrameChoice(max_frames=10)) as source:
        names: dict[str, Any] = {"my_images": [frame.rgb for frame in source]}
    (block,) = blocks()
    exec(block, names)
    poses = names["stream"].trajectory.poses
    assert poses.shape == (10, 4, 4) and np.isfinite(poses).all()
