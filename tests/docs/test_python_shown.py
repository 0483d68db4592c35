"""What documents show for Python: names exist, and the README's example with images runs as it stands there."""

import ast
from typing import Any

import numpy as np

import stream_recon
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from tests.docs.documents import ROOT, blocks, documents, name_of

SAMPLE = ROOT / "app" / "sample" / "walkthrough.mp4"


def used_names(code: str) -> set[str]:
    """Names of stream_recon in a program that imports it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "sr":
            names.add(node.attr)
        if isinstance(node, ast.ImportFrom) and node.module == "stream_recon":
            names |= {alias.name for alias in node.names}
    return names


def test_programs_use_public_names() -> None:
    programs = [(name_of(path), code) for path in documents() for code in blocks(path, "python")]
    assert len(programs) > 6
    for name, code in programs:
        assert used_names(code) <= set(stream_recon.__all__), f"{name}: {used_names(code)}"


def test_the_example_with_images_runs() -> None:
    with open_source(str(SAMPLE), FrameChoice(max_frames=10)) as source:
        names: dict[str, Any] = {"my_images": [frame.rgb for frame in source]}
    (block,) = [code for code in blocks(ROOT / "README.md", "python") if "my_images" in code]
    exec(block, names)
    poses = names["stream"].trajectory.poses
    assert poses.shape == (10, 4, 4) and np.isfinite(poses).all()
