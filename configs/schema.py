"""Presets: the settings of network, stream, image and points, as frozen dataclasses read from TOML and written to it.

A preset is a TOML file with the tables ``[network]``, ``[stream]``, ``[image]`` and ``[points]``. Fields without
a default have to be in the file. An unknown key is an error, so a misspelt one is never ignored.
"""

import builtins
import dataclasses
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stream_recon.configs.errors import ConfigError

PRESET_FOLDER = Path(__file__).parent
MAX_PRESET_BYTES = 16_384
"""The time to parse TOML grows with the square of its nesting, so longer files are refused."""

CONFIDENCE_LEVELS = {"low": 0.05, "medium": 0.5, "high": 0.9}
"""Named levels of `PointsConfig.confidence`: all but sky; no guesses; measured or nearly so."""

KeyframeMode = Literal["flow", "every", "interval"]
DeviceChoice = Literal["auto", "cuda", "mps", "cpu"]
AttentionChoice = Literal["auto", "triton", "flashinfer", "flashinfer-fa2", "flashinfer-fa3", "sdpa"]
PrecisionChoice = Literal["auto", "int8", "bf16", "fp32"]
"""Number type of the network's matrices; ``auto``: the fastest that this machine runs well."""
CacheChoice = Literal["full", "fp8", "compressed"]
"""KV cache of frames: in the run's precision; in e4m3; or in the run's precision with compressed layers, also where the
preset has none."""
RotationSearch = Literal["auto", True, False]
"""See `StreamConfig.rotation_search`."""


def _within(config: object, low: float, high: float, *names: str) -> None:
    """Raises ConfigError unless all numbers of these fields are finite and from ``low`` to ``high``."""
    for name in names:
        value = getattr(config, name)
        for number in value if isinstance(value, tuple) else (value,):
            # In this form nan fails.
            if number is not None and not low <= number <= high:
                bound = f"at least {low:g}" if number < low else f"from {low:g} to {high:g}"
                raise ConfigError(f"{name} must be {bound}, not {value}")


@dataclass(frozen=True)
class NetworkConfig:
    """Sizes of a network of the LingBot-Map family. Tokens have ``dim`` channels, heads ``dim // heads``."""

    dim: int
    heads: int
    encoder_depth: int
    depth: int
    """Pairs of one frame block and one global block."""
    output_layers: tuple[int, int, int, int]
    """Pairs whose outputs feed the depth head; the last one also feeds the camera head."""
    camera_depth: int
    camera_heads: int
    camera_iterations: int
    dpt_features: int
    dpt_channels: tuple[int, int, int, int]
    image_size: int
    """Side in pixels of the square image of the encoder's position table; other sizes interpolate it."""
    patch_size: int = 14
    mlp_ratio: float = 4.0
    registers: int = 4
    encoder_stem: Literal["linear", "conv"] = "linear"
    """``linear``: one patch projection, as published. ``conv``: plus a small convolutional branch."""
    encoder_qk_norm: bool = False
    camera_dim: int | None = None
    """Width of the camera head; None: twice ``dim``, as published."""
    point_head: bool = False
    rope_time_dims: int = 20
    """Channels of a head that RoPE gives to time in global attention; rows and columns share the rest equally."""
    flow_blocks: int = 0
    """Transformer blocks of odometry's flow head; 0: no odometry, as published."""
    keyframe_matcher: bool = False
    """Whether odometry also matches keyframes further back."""
    dpt_upsampling: Literal["bilinear", "convex"] = "bilinear"
    """``bilinear``: the last layers at full resolution, as published. ``convex``: at half resolution, then learned
    mixtures of neighbours."""

    def __post_init__(self) -> None:
        _within(self, 1, 65_536, "dim", "heads", "camera_dim", "dpt_features", "dpt_channels", "image_size")
        _within(self, 1, 1024, "encoder_depth", "depth", "camera_depth", "camera_heads", "camera_iterations")
        _within(self, 1, 256, "patch_size")
        _within(self, 0, 1024, "output_layers", "registers", "rope_time_dims", "flow_blocks")
        _within(self, 0.01, 1024, "mlp_ratio")
        if self.dim % self.heads or (self.dim // self.heads - self.rope_time_dims) % 4:
            raise ConfigError(
                f"dim {self.dim}, heads {self.heads} and rope_time_dims {self.rope_time_dims} do not go together: "
                "dim must be a multiple of heads, and dim / heads - rope_time_dims one of 4"
            )
        if list(self.output_layers) != sorted(self.output_layers) or self.output_layers[-1] >= self.depth:
            raise ConfigError(f"output_layers {self.output_layers} must ascend below depth {self.depth}")
        if self.flow_blocks and self.encoder_stem != "conv":
            raise ConfigError("flow_blocks needs encoder_stem conv: it compares that stem's features")
        if self.keyframe_matcher and not self.flow_blocks:
            raise ConfigError("keyframe_matcher needs flow_blocks: it starts from their motion")

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads

    @property
    def special_tokens(self) -> int:
        """Number of special tokens of a frame: camera, registers, scale."""
        return self.registers + 2


@dataclass(frozen=True)
class StreamConfig:
    """KV cache, keyframes and submaps of a stream. All budgets count cached frames."""

    scale_frames: int
    """First frames, processed together, whose patch tokens stay in the cache."""
    window: int
    """Latest cached frames whose patch tokens are visible."""
    special_budget: int
    """Cached frames that keep their special tokens; beyond it the oldest are thinned."""
    camera_window: int
    """Latest cached frames that the camera head attends to, in addition to the scale frames."""
    max_views: int | None = None
    """Most frames that the caches take before a new submap begins with the latest keyframes, twice as many as scale
    frames: as many as the network was trained with; None: any number."""
    compressed_from: int | None = None
    """First global layer whose cache has one entry for each block of a kept frame's patches; None: all layers keep
    every patch."""
    block_side: int = 2
    """Patches of such a block's side."""
    keyframes: KeyframeMode = "flow"
    keyframe_interval: int = 1
    flow_threshold: float = 12.0
    """Mean pixel displacement, at network resolution, that makes a frame a keyframe."""
    max_gap: int = 30
    """A keyframe is forced after this many frames without one."""
    submap_overlap: float = 0.0
    """When less than this share of a frame's view is in that of any scale frame, a new submap begins, with the latest
    keyframes as scale frames; 0: never."""
    rotation_search: RotationSearch = "auto"
    """Whether odometry searches for large errors of rotation. ``"auto"``: on a CPU, where most steps skip it. A GPU's
    captured step cannot: on an H100 a step takes 5.8 ms with it and 5.0 ms without, and one of 16 streams 17.4 and
    12.5 ms, at equal errors on 11 sequences."""

    def __post_init__(self) -> None:
        _within(self, 1, 10**6, "scale_frames", "window", "special_budget", "camera_window")
        _within(self, 1, 10**9, "keyframe_interval", "max_gap")
        _within(self, 0, 10**9, "flow_threshold")
        _within(self, 2 * self.scale_frames + 1, 10**9, "max_views")
        _within(self, 1, 1024, "compressed_from")
        _within(self, 2, 8, "block_side")
        if not 0 <= self.submap_overlap < 1:
            raise ConfigError(f"submap_overlap must be at least 0 and below 1, not {self.submap_overlap}")


@dataclass(frozen=True)
class ImageConfig:
    """The network's image: the complete source image, resized to the patch grid nearest to its aspect ratio."""

    max_patches: int
    max_side: int
    """Longer side in pixels, at most."""

    def __post_init__(self) -> None:
        _within(self, 1, 65_536, "max_patches", "max_side")


@dataclass(frozen=True)
class PointsConfig:
    """Selection of the pixels that become points of the cloud. Other views must not contradict them either."""

    confidence: float = CONFIDENCE_LEVELS["low"]
    """Least confidence of a pixel from 0 to 1, see `stream_recon.app.core.depth_points.confidence_levels`."""
    voxel: float = 0.01
    """Edge of a voxel in the units of the reconstruction (scale frames lie at distance 1); one point each is kept."""
    edge_ratio: float = 0.08
    """A pixel whose neighbours' depth differs by more than this share is a depth edge and is left out."""

    def __post_init__(self) -> None:
        _within(self, 0, 1, "confidence")
        _within(self, 1e-9, 10**9, "voxel")
        _within(self, 0, 10**9, "edge_ratio")


def points_overrides(confidence: str | None, voxel: float | None) -> dict[str, Any]:
    """Preset overrides for a confidence, ``low``, ``medium``, ``high`` or a number from 0 to 1, and a voxel's edge.

    Raises ConfigError: anything else.
    """
    overrides: dict[str, Any] = {}
    if confidence is not None:
        try:
            level = CONFIDENCE_LEVELS[confidence] if confidence in CONFIDENCE_LEVELS else float(confidence)
        except ValueError:
            level = math.nan
        if not 0 <= level <= 1:
            raise ConfigError(f"--confidence {confidence}: use {', '.join(CONFIDENCE_LEVELS)} or a number from 0 to 1")
        overrides["points.confidence"] = level
    if voxel is not None:
        if not 1e-9 <= voxel <= 10**9:
            raise ConfigError(f"--voxel {voxel:g}: use a length above 0, in units of the result")
        overrides["points.voxel"] = voxel
    return overrides


@dataclass(frozen=True)
class Preset:
    """All settings of a run that a preset file holds."""

    name: str
    network: NetworkConfig
    stream: StreamConfig
    image: ImageConfig
    points: PointsConfig = field(default_factory=PointsConfig)

    def with_cache(self, cache: CacheChoice) -> "Preset":
        """The preset with compressed layers, if ``cache`` asks for them and it has none. Raises ConfigError."""
        if cache != "compressed" or self.stream.compressed_from is not None:
            return self
        # The first two need every patch: with blocks from the second one on, the embedded network's path errors grew by
        # a quarter.
        first = max(2, self.network.depth // 4)
        if first >= self.network.depth:
            raise ConfigError(f"--cache compressed needs a network of more than {self.network.depth} layers")
        return dataclasses.replace(self, stream=dataclasses.replace(self.stream, compressed_from=first))


def keyframe_overrides(keyframes: str | None) -> dict[str, Any]:
    """Preset overrides for ``flow``, ``every`` or a number. Raises ConfigError: anything else."""
    if keyframes is None:
        return {}
    if keyframes in ("flow", "every"):
        return {"stream.keyframes": keyframes}
    if not keyframes.isdecimal() or int(keyframes) < 1:
        raise ConfigError(f"keyframes must be flow, every or a number from 1, not {keyframes!r}")
    return {"stream.keyframes": "interval", "stream.keyframe_interval": int(keyframes)}


def preset_names() -> list[str]:
    """Names of the presets that ship with the package."""
    return sorted(path.stem for path in PRESET_FOLDER.glob("*.toml"))


def load_preset(name_or_path: str, overrides: Mapping[str, Any] | None = None) -> Preset:
    """Read a preset by name or from a TOML file.

    ``overrides`` maps dotted names to values, as in ``{"stream.window": 16}``. Values of None are ignored. Raises
    ConfigError: no such preset, unreadable TOML, a wrong key or type of a value.
    """
    path = Path(name_or_path)
    if path.suffix != ".toml":
        path = PRESET_FOLDER / f"{name_or_path}.toml"
    if not path.is_file():
        raise ConfigError(f"no preset {name_or_path!r}: give a TOML file or one of {', '.join(preset_names())}")
    try:
        if path.stat().st_size > MAX_PRESET_BYTES:
            raise ConfigError(f"preset {path} is longer than {MAX_PRESET_BYTES} bytes, too long for a preset")
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise ConfigError(f"preset {path} is not readable TOML: {error}") from error
    for name, table in tables.items():
        _check_table(table, f"preset {path.stem} [{name}]")
    for dotted, value in (overrides or {}).items():
        if value is not None:
            table, _, key = dotted.partition(".")
            tables.setdefault(table, {})[key] = value
    return preset_from_tables(path.stem, tables)


def preset_from_tables(name: str, tables: Mapping[str, Any]) -> Preset:
    """Build a preset from its tables, as `dataclasses.asdict` gives them. Raises ConfigError."""
    _check_table(tables, f"preset {name}")
    kinds = {"network": NetworkConfig, "stream": StreamConfig, "image": ImageConfig, "points": PointsConfig}
    unknown = sorted(set(tables) - set(kinds) - {"name"})
    if unknown:
        raise ConfigError(f"preset {name}: unknown table [{unknown[0]}]; known are {', '.join(kinds)}")
    parts = {key: _fill(kind, tables.get(key, {}), f"preset {name} [{key}]") for key, kind in kinds.items()}
    first, depth = parts["stream"].compressed_from, parts["network"].depth
    if first is not None and first >= depth:
        raise ConfigError(f"preset {name} [stream]: compressed_from must be below the network's depth {depth}")
    return Preset(name=name, **parts)


def _check_table(table: object, where: str) -> None:
    if not isinstance(table, Mapping):
        raise ConfigError(f"{where} must be a table of keys and values")


def _fill(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    _check_table(table, where)
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in dataclasses.fields(kind)}
    for key in table:
        if key not in known:
            raise ConfigError(f"{where}: unknown key {key!r}; known are {', '.join(known)}")
    for key, entry in known.items():
        has_default = entry.default is not dataclasses.MISSING or entry.default_factory is not dataclasses.MISSING
        if key not in table and not has_default:
            raise ConfigError(f"{where}: {key} is missing")
    values = {key: _coerce(hints[key], value, f"{where}: {key}") for key, value in table.items()}
    try:
        return kind(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def _coerce(hint: Any, value: Any, where: str) -> Any:
    """Check ``value`` against a field's type; lists become tuples, and integers floats, where the type has these."""
    arguments = typing.get_args(hint)
    match typing.get_origin(hint):
        case typing.Union | types.UnionType:
            return None if value is None else _coerce(arguments[0], value, where)
        case typing.Literal:
            # Of the same type, since 1 equals True.
            if not any(value == choice and type(value) is type(choice) for choice in arguments):
                raise ConfigError(
                    f"{where} must be one of {', '.join(str(c).lower() for c in arguments)}, not {value!r}"
                )
            return value
        case builtins.tuple:
            if not isinstance(value, list | tuple) or len(value) != len(arguments):
                raise ConfigError(f"{where} must be {len(arguments)} numbers, not {value!r}")
            return tuple(_coerce(a, v, where) for a, v in zip(arguments, value, strict=True))
        case _:
            return _coerce_scalar(hint, value, where)


def _coerce_scalar(hint: type, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        # TOML's integers are unbounded; floats are not.
        value = float(value) if abs(value) < 2**63 else math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} must be a number, not {value}")
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{where} must be of type {hint.__name__}, not {value!r}")
    return value


def preset_to_toml(preset: Preset) -> str:
    """TOML text that `load_preset` reads as the same preset, named after its file. Fields of None are left out."""
    tables = {key: table for key, table in dataclasses.asdict(preset).items() if isinstance(table, dict)}
    return "\n".join(table_to_toml(name, table) for name, table in tables.items())


def table_to_toml(name: str, table: Mapping[str, object]) -> str:
    """One table as TOML: numbers, booleans, plain strings and lists of them are written as in JSON."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if value is not None]
    return "\n".join([f"[{name}]", *lines]) + "\n"


UNITS = {"M": 10**6, "G": 10**9, "T": 10**12, "MI": 2**20, "GI": 2**30, "TI": 2**40}
"""Bytes per unit: decimal ones, and binary ones with an I."""


def parse_size(text: str, option: str) -> int:
    """Number of bytes of ``8GB``, ``8G`` (10^9 each), ``8GiB`` (2^30), ``8000MB`` and similar, given with ``option``.

    Raises ConfigError: anything else.
    """
    match = re.fullmatch(r"\s*([0-9]{1,12}(?:\.[0-9]{1,12})?)\s*([MGT]I?)B?\s*", text.upper())
    if not match:
        raise ConfigError(f"{option} must be a size such as 8GB, 8GiB or 8000MB, not {text[:100]!r}")
    return int(float(match[1]) * UNITS[match[2]])
