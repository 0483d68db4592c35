from pathlib import Path
from typing import Any

import pytest

from stream_recon.configs.errors import ConfigError
from stream_recon.configs.schema import keyframe_overrides, load_preset, preset_names


def test_every_preset_that_ships_loads() -> None:
    assert {"small", "lingbot-map"} <= set(preset_names())
    for name in preset_names():
        assert load_preset(name).name == name


def test_an_override_changes_its_value_alone() -> None:
    plain, changed = load_preset("small"), load_preset("small", {"stream.window": 3, "stream.keyframes": None})
    assert changed.stream.window == 3
    assert changed.network == plain.network and changed.stream.keyframes == plain.stream.keyframes


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"stream.windw": 3}, "unknown key 'windw'"),
        ({"strem.window": 3}, r"unknown table \[strem\]"),
        ({"stream.window": "3"}, "must be of type int"),
        ({"stream.window": True}, "must be of type int"),
        ({"stream.window": 0}, "at least 1"),
        ({"stream.keyframes": "some"}, "one of flow, every, interval"),
        ({"network.output_layers": [1, 2, 3]}, "4 numbers"),
        ({"network.output_layers": [1, 2, 3, 6]}, "below depth"),
        ({"network.heads": 5}, "do not go together"),
    ],
)
def test_impossible_values_are_named(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_preset("small", overrides)


def test_files_are_presets_too_and_have_to_be_complete(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no preset"):
        load_preset("nothing")
    path = tmp_path / "mine.toml"
    path.write_text("[stream]\nwindow = 4\n")
    with pytest.raises(ConfigError, match="dim is missing"):
        load_preset(str(path))
    path.write_text("[stream")
    with pytest.raises(ConfigError, match="not readable TOML"):
        load_preset(str(path))


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        (None, {}),
        ("flow", {"stream.keyframes": "flow"}),
        ("every", {"stream.keyframes": "every"}),
        ("7", {"stream.keyframes": "interval", "stream.keyframe_interval": 7}),
    ],
)
def test_keyframe_choices(text: str | None, overrides: dict[str, Any]) -> None:
    assert keyframe_overrides(text) == overrides


@pytest.mark.parametrize("text", ["0", "-1", "often", "2.5", ""])
def test_other_keyframe_choices_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="flow, every or a number"):
        keyframe_overrides(text)
