"""Two summaries side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from stream_recon.app.batch.page import SHOWN
from stream_recon.app.run_record import PROGRAM
from stream_recon.configs.errors import InputError

COMPARED = ("ate_m", "ate_over_path", "rpe_trans_m", "rot_step_deg", "auc_30", "absrel", "delta1", "f1")


def read_summary(path: Path) -> dict[str, Any]:
    """What a batch wrote.

    Raises:
        InputError: missing, or not a ``summary.json`` of this program.
    """
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a summary.json: {error}") from error
    wanted = {"program", "scenes", "means", "weights_sha256", "preset", "options", "protocol"}
    if not isinstance(record, dict) or not wanted <= set(record) or record["program"] != PROGRAM:
        raise InputError(f"{path} is not a summary.json of {PROGRAM} batch")
    return record


def comparison(ours: Mapping[str, Any], other: Mapping[str, Any]) -> Table:
    """For each scene that both know by path and have figures of: ours, theirs; then the means over these scenes."""
    theirs = {scene["path"]: scene for scene in other["scenes"]}
    pairs = [
        (scene, theirs[scene["path"]])
        for scene in ours["scenes"]
        if scene.get("figures") and theirs.get(scene["path"], {}).get("figures")
    ]
    shown = [name for name in COMPARED if any(_both(pair, name) for pair in pairs)]
    table = Table(title=f"this batch | the other: {len(pairs)} scenes in both", title_justify="left")
    table.add_column("scene", overflow="fold")
    for name in shown:
        table.add_column(SHOWN[name][0], justify="right", no_wrap=True)
    for number, pair in enumerate(pairs):
        cells = [_cell(_both(pair, name), SHOWN[name][1]) for name in shown]
        table.add_row(pair[0]["name"], *cells, end_section=number == len(pairs) - 1)
    if pairs:
        table.add_row("mean", *(_cell(_mean(pairs, name), SHOWN[name][1]) for name in shown), style="bold")
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


def _both(pair: tuple[Mapping[str, Any], Mapping[str, Any]], name: str) -> tuple[float, float] | None:
    mine, theirs = (scene["figures"].get(name) for scene in pair)
    return None if mine is None or theirs is None else (mine, theirs)


def _mean(pairs: list[tuple[Mapping[str, Any], Mapping[str, Any]]], name: str) -> tuple[float, float] | None:
    known = [both for pair in pairs if (both := _both(pair, name)) is not None]
    return (sum(a for a, _ in known) / len(known), sum(b for _, b in known) / len(known)) if known else None


def _cell(both: tuple[float, float] | None, decimals: int) -> str:
    return "-" if both is None else f"{both[0]:.{decimals}f} | {both[1]:.{decimals}f}"
