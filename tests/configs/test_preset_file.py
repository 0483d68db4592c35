import dataclasses
from pathlib import Path

import pytest

from stream_recon.configs.schema import load_preset, preset_names, preset_to_toml


@pytest.mark.parametrize("name", preset_names())
def test_a_written_preset_reads_as_itself(name: str, tmp_path: Path) -> None:
    preset = load_preset(name, {"points.voxel": 0.25, "stream.keyframes": "every"})
    path = tmp_path / "own.toml"
    path.write_text(preset_to_toml(preset))
    assert load_preset(str(path)) == dataclasses.replace(preset, name="own")
