from pathlib import Path
from typing import Any

import pytest

from stream_recon.configs.errors import ConfigError
from stream_recon.configs.schema import (
    keyframe_overrides,
    load_preset,
    points_overrides,
    preset_from_tables,
    preset_names,
)


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
        ({"stream.rotation_search": "on"}, "one of auto, true, false"),
        ({"stream.rotation_search": 1}, "one of auto, true, false"),
        ({"network.output_layers": [1, 2, 3]}, "4 numbers"),
        ({"network.output_layers": [1, 2, 3, 6]}, "below depth"),
        ({"stream.compressed_from": 6}, "below the network's depth 6"),
        ({"network.heads": 5}, "do not go together"),
        ({"network.heads": 0}, "heads must be at least 1, not 0"),
        ({"network.mlp_ratio": float("nan")}, "mlp_ratio must be a number"),
        ({"network.dpt_channels": [48, 0, 192, 192]}, "dpt_channels must be at least 1"),
        ({"network.dim": 384 * 10**9}, "dim must be from 1 to 65536"),
        ({"stream.window": 2**70}, "window must be from 1 to"),
        ({"stream.window": 10**9}, "window must be from 1 to"),
        ({"stream.flow_threshold": float("inf")}, "flow_threshold must be a number"),
        ({"stream.flow_threshold": 10**400}, "flow_threshold must be a number"),
        ({"points.voxel": 0}, "voxel must be at least"),
        ({"points.voxel": -1.0}, "voxel must be at least"),
        ({"points.voxel": float("nan")}, "voxel must be a number"),
        ({"points.confidence": 1.5}, "confidence must be from 0 to 1"),
        ({"points.confidence": "low"}, "confidence must be of type float"),
        ({"points.edge_ratio": float("nan")}, "edge_ratio must be a number"),
        ({"points.confidence": float("inf")}, "confidence must be a number"),
        ({"image.max_patches": 0}, "max_patches must be at least 1"),
        ({"image.max_patches": 10**9, "image.max_side": 10**9}, "max_patches must be from 1 to"),
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
    ("text", "message"),
    [
        ("network = 5", r"\[network\] must be a table"),
        ("[[network]]\ndim = 4", r"\[network\] must be a table"),
        ("stream = 1", r"\[stream\] must be a table"),
        (f"[network]\ndim = {'9' * 5000}", "not readable TOML"),
        ("a = " + "[" * 5000 + "]" * 5000, "not readable TOML"),
        ("[network]\ndim" + ".a" * 50_000 + " = 1", "longer than"),
    ],
)
def test_text_that_is_no_preset_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    for overrides in (None, {"stream.window": 4}):
        with pytest.raises(ConfigError, match=message) as error:
            load_preset(str(path), overrides)
        assert len(str(error.value)) < 500


def test_tables_of_a_damaged_record_are_refused() -> None:
    for tables in (5, [1], {"network": "small"}):
        with pytest.raises(ConfigError, match="must be a table"):
            preset_from_tables("run.json", tables)  # type: ignore[arg-type]


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


@pytest.mark.parametrize(("text", "level"), [("low", 0.05), ("medium", 0.5), ("high", 0.9), ("0", 0.0), ("0.75", 0.75)])
def test_a_confidence_is_a_name_or_a_number(text: str, level: float) -> None:
    assert load_preset("small", points_overrides(text, None)).points.confidence == level


def test_no_option_leaves_the_presets_points() -> None:
    assert points_overrides(None, None) == {}
    assert load_preset("small", points_overrides(None, 0.2)).points.voxel == 0.2


@pytest.mark.parametrize(("confidence", "voxel"), [("1.2", None), ("nan", None), ("certain", None), (None, 0.0)])
def test_impossible_points_are_refused(confidence: str | None, voxel: float | None) -> None:
    with pytest.raises(ConfigError, match=r"--confidence|--voxel"):
        points_overrides(confidence, voxel)


def test_a_cache_of_compressed_layers_is_the_presets_own_or_leaves_the_first_quarter_whole() -> None:
    small, full_size = load_preset("small"), load_preset("lingbot-map")
    first = [preset.with_cache("compressed").stream.compressed_from for preset in (small, full_size)]
    assert first == [2, 6]
    own = load_preset("small", {"stream.compressed_from": 4})
    assert own.with_cache("compressed") == own == own.with_cache("full")
    assert small.with_cache("full").stream.compressed_from is None
    shallow = load_preset("small", {"network.depth": 2, "network.output_layers": [0, 0, 1, 1]})
    with pytest.raises(ConfigError, match="more than 2 layers"):
        shallow.with_cache("compressed")
