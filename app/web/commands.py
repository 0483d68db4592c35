"""Command lines of jobs, and the options that a page may set."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stream_recon.app.export.formats import FORMATS, Format, concerned
from stream_recon.app.web.data_folder import DataFolder
from stream_recon.app.web.jobs import WebJob
from stream_recon.configs.errors import ConfigError

ADDRESS = re.compile(r"(rtsps?|https?|rtmps?|srt|udp|tcp)://[^\s\x00-\x1f]{1,2000}", re.IGNORECASE)
"""Addresses that a page may give; paths of this machine are not among them."""
CAMERA = re.compile(r"[0-9]{1,2}")
STORES_VARIABLE = "STREAM_RECON_STORES"
"""Environment variable: addresses such as ``s3://bucket/folder``, with commas, below which jobs read and write."""
STORE = re.compile(r"(?!(file|local|memory|data|https?):)[a-z][a-z0-9+.-]+://[\w.-]+(/(?!\.+(/|$))[\w.-]+)*/?")
PART = r"/(?!\.{1,2}(/|$))[^/\\:*?\[\]#%\x00-\x1f\x7f]{1,255}"
"""Part of a path in a store, which leads to no other folder, and is no pattern of several."""
SCALE = "(marker:[0-9]+([.][0-9]+)?|height:[0-9]+([.][0-9]+)?|frames:[0-9]+,[0-9]+,[0-9]+([.][0-9]+)?|exif)"
"""Sources of metric scale without a file."""
Schema = dict[str, Any]
"""A JSON Schema, of the keywords that `_fits` knows."""


COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": 10_000_000}
BOOLEAN: Schema = {"type": "boolean"}
OPTIONS: dict[str, tuple[Schema, Callable[[Any], list[str]]]] = {
    "stride": (COUNT, lambda value: ["--stride", str(value)]),
    "max_frames": (COUNT, lambda value: ["--max-frames", str(value)]),
    "scale": ({"type": "string", "pattern": f"^{SCALE}$"}, lambda value: ["--scale-from", value]),
    "mesh": (BOOLEAN, lambda value: [] if value else ["--no-mesh"]),
    "dense": (BOOLEAN, lambda value: [] if value else ["--dense", "off"]),
    "mapping": ({"type": "string", "enum": ["full", "stream", "off"]}, lambda value: ["--mapping", value]),
    "output": ({"type": "string"}, lambda value: []),
}
"""Options of a reconstruction that a page may set: schemas of their values, and their words on the command line."""
BOX = re.compile(r"(subject|-?\d{1,9}(\.\d{1,9})?(,-?\d{1,9}(\.\d{1,9})?){5,6})")
"""Borders of a box, as the viewer states them; see ``export --box``."""
WEB_EXPORTS = {
    form.name if suffix == form.offered[0] else f"{form.name}-{suffix[1:]}": (form, suffix)
    for form in FORMATS.values()
    for suffix in form.offered
}
"""Exports that a page offers, by name: the format, and the suffix of its file, empty for a folder."""


def web_export(name: str) -> tuple[Format, str]:
    """The format and suffix of an export; names of jobs of 0.2 count. Raises ConfigError."""
    offer = WEB_EXPORTS.get("glb" if name == "points" else name)
    if offer is None:
        raise ConfigError(f"the format is one of {', '.join(WEB_EXPORTS)}")
    return offer


def checked_options(values: object) -> dict[str, Any]:
    """Options of a reconstruction from a page's JSON. Raises ConfigError."""
    if values is None:
        return {}
    if not isinstance(values, dict) or len(values) > 20:
        raise ConfigError("the options are not an object")
    options: dict[str, Any] = {}
    for name, value in values.items():
        if name not in OPTIONS or not (value is None or _fits(OPTIONS[name][0], whole(value))):
            raise ConfigError(f"the option {str(name)[:40]} has no such value")
        if name == "output" and value is not None:
            checked_store(value)
        options |= {} if value is None else {name: whole(value)}
    return options


def _fits(schema: Schema, value: Any) -> bool:
    """Whether a value is as a schema says."""
    if type(value) is not {"integer": int, "boolean": bool, "string": str}[schema["type"]]:
        return False
    is_among = value in schema.get("enum", [value]) and re.fullmatch(schema.get("pattern", ".*"), str(value))
    return bool(is_among) and schema.get("minimum", value) <= value <= schema.get("maximum", value)


def checked_export(name: object, box: object) -> dict[str, Any]:
    """Options of an export from a page's JSON. Raises ConfigError: no such format, or a box that does not cut it."""
    form, _ = web_export(name if isinstance(name, str) else "")
    if box in (None, ""):
        return {}
    text = re.sub(r"\s|^(export\s+)?--box=?", "", box) if isinstance(box, str) else ""
    if not BOX.fullmatch(text):
        raise ConfigError("a box is subject, or six borders, and maybe degrees of turn, with commas: see the viewer")
    if not form.concerns("box"):
        raise ConfigError(f"a box cuts {concerned('box')}: leave it out, or choose one of these")
    return {"box": text}


def whole(value: object) -> object:
    """A value of JSON, where 2.0 is the integer 2."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def checked_title(title: object) -> str:
    """A name that a page may leave out. Raises ConfigError."""
    if not isinstance(title, str | None):
        raise ConfigError("the name is no text")
    return (title or "").strip()


def checked_address(address: object) -> str:
    """A stream address or camera number from a page. Raises ConfigError."""
    text = address.strip() if isinstance(address, str) else ""
    if is_stored(text):
        return checked_store(text)
    if not (ADDRESS.fullmatch(text) or CAMERA.fullmatch(text)):
        raise ConfigError("give an address such as rtsp://host/stream, or the number of a camera of the server")
    return text


def store_pattern() -> str:
    """Pattern of the addresses in stores that jobs may read and write; empty: none. Raises ConfigError."""
    places = [each.strip() for each in os.environ.get(STORES_VARIABLE, "").split(",") if each.strip()]
    if wrong := [at for at, each in enumerate(places, 1) if not STORE.fullmatch(each)]:
        raise ConfigError(
            f"{STORES_VARIABLE}: entry {wrong[0]} is no folder of a store: use s3://BUCKET/FOLDER, with commas; "
            "keys of access have variables of their own, and file, memory and http are no stores"
        )
    return "|".join(f"{re.escape(each.rstrip('/'))}({PART})+" for each in places)


def checked_store(address: str) -> str:
    """An address that the operator allows. Raises ConfigError, which does not repeat it: it may have credentials."""
    pattern = store_pattern()
    if not pattern or not re.fullmatch(pattern, address) or len(address) > 1000:
        raise ConfigError(
            f"this address of {address.partition(':')[0][:20]} is not in a store that this server may use: "
            f"its operator names them in {STORES_VARIABLE}"
        )
    return address


def is_stored(source: str) -> bool:
    """Whether a source is an address in a store."""
    return "://" in source and not is_live(source)


def is_live(source: str) -> bool:
    """Whether a source is an address or a camera, which cannot be read again."""
    return bool(ADDRESS.fullmatch(source) or CAMERA.fullmatch(source))


def arguments(job: WebJob, data: DataFolder) -> list[str]:
    """The arguments of a job's command line."""
    folder = str(data.path / job.name)
    if job.kind == "refine":
        return ["refine", folder]
    if job.kind == "export":
        form, _ = web_export(job.source)
        words = ["export", folder, "--format", form.name, "-o", str(export_target(job, data)), "--overwrite"]
        return words + ([f"--box={job.options['box']}"] if "box" in job.options else [])
    words = ["reconstruct", job.source, "-o", folder, "--resume", "--host", "127.0.0.1", "--port", "0"]
    return words + [word for name, value in job.options.items() for word in OPTIONS[name][1](value)]


def export_target(job: WebJob, data: DataFolder) -> Path:
    """File or folder that an export writes; a folder is packed into ``NAME.zip`` next to it."""
    form, suffix = web_export(job.source)
    stem = job.name.removesuffix("-recon")
    return data.exports / str(job.id) / (f"{stem}{suffix}" if suffix else f"{stem}-{form.name}")


def export_file(job: WebJob, data: DataFolder) -> Path:
    """The file of an export that is downloaded."""
    target = export_target(job, data)
    return target if web_export(job.source)[1] else target.with_name(f"{target.name}.zip")
