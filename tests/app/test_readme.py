"""What the README shows for Python runs as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "app" / "sample" / "walkthrough.mp4"


def blocks() -> list[str]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "my_images" in block]


@pytest.mark.parametrize("number", range(2))
def test_an_example_runs(number: int) -> None:
    with open_source(str(SAMPLE), FrameChoice(max_frames=10)) as source:
        names = {"my_images": [frame.rgb for frame in source]}
    exec(blocks()[number], names)
    if "poses" in names:
        poses = names["poses"]
        assert sorted(poses) == list(range(10))
        assert all(np.isfinite(T).all() for T in poses.values())
