"""Two summaries side by side."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from stream_recon.app.batch.page import SHOWN
from stream_recon.app.batch.summary import counts
from stream_recon.app.core.json_text import parse_json
from stream_recon.app.result.run_record import PROGRAM
from stream_recon.configs.errors import InputError

COMPARED = ("ate_m", "ate_over_path", "rpe_trans_m", "rot_step_deg", "auc_30", "absrel", "delta1", "f1")


def read_summary(path: Path) -> dict[str, Any]:
    """What a batch wrote.

    Raises:
        InputError: missing, or not a ``summary.json`` of this program.
    """
    try:
        record = parse_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a summary.json: {error}") from error
    wanted = {"program", "scenes", "means", "weights_sha256", "preset", "options", "protocol"}
    if not isinstance(record, dict) or not wanted <= set(record) or record["program"] != PROGRAM:
        raise InputError(f"{path} is not a summary.json of {PROGRAM} batch")
    return record


def comparison(ours: Mapping[str, Any], other: Mapping[str, Any]) -> Table:
    """A table of ours and theirs for each scene that both know by path and have figures of."""
    pairs = _pairs(ours, other)
    shown = [name for name in COMPARED if any(_both(pair, name) for pair in pairs)]
    table = Table(title=f"this batch | the other: {len(pairs)} scenes in both", title_justify="left")
    table.add_column("scene", overflow="fold")
    for name in shown:
        # In a narrow terminal the two values stand one below the other.
        table.add_column(SHOWN[name][0], justify="right", overflow="fold")
    for pair in pairs:
        table.add_row(pair[0]["name"], *(_cell(_both(pair, name), SHOWN[name][1]) for name in shown))
    return table


def compared_means(ours: Mapping[str, Any], other: Mapping[str, Any]) -> Table:
    """Each figure: our mean, theirs, and over how many scenes; of those alone that both have it of."""
    pairs = _pairs(ours, other)
    table = Table("mean", "this batch", "the other", "scenes")
    for name, (heading, decimals) in SHOWN.items():
        known = [both for pair in pairs if counts(name, pair[0]) and (both := _both(pair, name)) is not None]
        if known:
            mine, theirs = (sum(side) / len(known) for side in zip(*known, strict=True))
            table.add_row(heading, f"{mine:.{decimals}f}", f"{theirs:.{decimals}f}", str(len(known)))
    return table


def differences(ours: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """What has to be known before two summaries are compared; a line each."""
    lines = []
    for name, word in (("weights_sha256", "weights"), ("preset", "presets"), ("protocol", "protocols")):
        if ours[name] != other[name]:
            lines.append(f"the {word} differ")
    for name in sorted(set(ours["options"]) | set(other["options"])):
        mine, theirs = ours["options"].get(name), other["options"].get(name)
        if mine != theirs:
            lines.append(f"--{name.replace('_', '-')} was {_given(mine)} here and {_given(theirs)} there")
    return lines


def _given(value: Any) -> str:
    return "not given" if value is None else str(value)


Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def _pairs(ours: Mapping[str, Any], other: Mapping[str, Any]) -> list[Pair]:
    theirs = {scene["path"]: scene for scene in other["scenes"]}
    return [
        (scene, theirs[scene["path"]])
        for scene in ours["scenes"]
        if scene.get("figures") and theirs.get(scene["path"], {}).get("figures")
    ]


def _both(pair: Pair, name: str) -> tuple[float, float] | None:
    mine, theirs = (scene["figures"].get(name) for scene in pair)
    return None if mine is None or theirs is None else (mine, theirs)


def _cell(both: tuple[float, float] | None, decimals: int) -> str:
    return "-" if both is None else f"{both[0]:.{decimals}f} | {both[1]:.{decimals}f}"
