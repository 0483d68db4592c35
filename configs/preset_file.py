"""A preset as TOML text: the way back from `load_preset`."""

import dataclasses
import json
from collections.abc import Mapping

from stream_recon.configs.schema import Preset


def preset_to_toml(preset: Preset) -> str:
    """Text that `load_preset` reads as the same preset, named after its file. Fields that are None are left out."""
    tables = {key: table for key, table in dataclasses.asdict(preset).items() if isinstance(table, dict)}
    return "\n".join(table_to_toml(name, table) for name, table in tables.items())


def table_to_toml(name: str, table: Mapping[str, object]) -> str:
    """One table; numbers, booleans, plain strings and lists of them are the same in TOML and JSON."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    return "\n".join([f"[{name}]", *lines]) + "\n"
