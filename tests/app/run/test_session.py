"""A run through source, engine and writer: what it says of its length and of the caches."""

import json
from pathlib import Path

import pytest

from stream_recon.configs.schema import load_preset, preset_to_toml
from stream_recon.models.embedded import EMBEDDED_PRESET
from tests.app.media import write_images
from tests.app.program import exit_code


def test_a_bound_of_views_is_told_and_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    preset = tmp_path / "long.toml"
    bounded = {"image.max_side": 56, "stream.max_views": 17, "stream.max_gap": 1, "stream.flow_threshold": 1e9}
    preset.write_text(preset_to_toml(load_preset(EMBEDDED_PRESET, bounded)))
    images = write_images(tmp_path / "images", [f"{number:02}.png" for number in range(26)])
    options = ("--preset", str(preset), "--no-viewer", "--mapping", "off", "--no-mesh", "-o", str(tmp_path / "out"))
    assert exit_code(monkeypatch, str(images), *options) == 0
    assert "keyframes 3 frames apart" in capsys.readouterr().out
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["frames"]["keyframes"] == 14 and run["submaps"] == 1
    assert run["cache_use"] == {
        "views": 14,
        "views_with_patches": 14,
        "evicted": 0,
        "evicted_patches": 0,
        "max_views": 17,
        "min_keyframe_gap": 3,
    }
