"""Checkpoints: files of this program (safetensors) and published LingBot-Map files.

Loading is strict: a file has every tensor, with its shape, and no other.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stream_recon.configs.errors import OutputError, WeightsError
from stream_recon.configs.schema import NetworkConfig
from stream_recon.models.network import StreamingNetwork

RENAMES: tuple[tuple[str, str | None], ...] = (
    (r"^aggregator\.patch_embed\.mask_token$", None),
    (r"^aggregator\.patch_embed\.patch_embed\.proj\.", "encoder.patch_embed."),
    (r"^aggregator\.patch_embed\.", "encoder."),
    (r"^camera_head\.empty_pose_tokens$", "camera_head.empty_pose"),
    (r"^camera_head\.poseLN_modulation\.1\.", "camera_head.modulation."),
    (r"^(depth|point)_head\.resize_layers\.", r"\1_head.resize."),
    (r"^(depth|point)_head\.scratch\.output_conv1\.", r"\1_head.out1."),
    (r"^(depth|point)_head\.scratch\.output_conv2\.0\.", r"\1_head.out2."),
    (r"^(depth|point)_head\.scratch\.output_conv2\.2\.", r"\1_head.out3."),
)
"""Published names and ours; the first match counts. None: not used at run time."""
LEVELS = (
    (r"^(depth|point)_head\.scratch\.layer(\d)_rn\.", "{}_head.reduce.{}."),
    (r"^(depth|point)_head\.scratch\.refinenet(\d)\.resConfUnit1\.", "{}_head.fusions.{}.skip."),
    (r"^(depth|point)_head\.scratch\.refinenet(\d)\.resConfUnit2\.", "{}_head.fusions.{}.refine."),
    (r"^(depth|point)_head\.scratch\.refinenet(\d)\.out_conv\.", "{}_head.fusions.{}.out."),
)
"""Published names with a level, counted from 1, and ours, counted from 0."""
PUBLISHED_MARK = "aggregator.patch_embed."
"""Prefix of names that only published checkpoints have."""
PREFIXES = (
    (re.compile(r"^(network\.)?step_head\."), r"\1odometry.flow_head."),
    (re.compile(r"^(network\.)?look_back\."), r"\1odometry.keyframe_matcher."),
)
"""Prefixes of tensors in weights files, the embedded one among them, and the modules' names. Training's files of both
networks have ``network.`` in front."""


def rename_published(name: str) -> str | None:
    """Our name of a published tensor; None for one that is not used."""
    for pattern, replacement in RENAMES:
        if re.match(pattern, name):
            return None if replacement is None else re.sub(pattern, replacement, name)
    for pattern, template in LEVELS:
        match = re.match(pattern, name)
        if match:  # published levels count from 1
            return template.format(match[1], int(match[2]) - 1) + name[match.end() :]
    return name


def from_published(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors under published names -> the same under ours."""
    renamed = ((rename_published(name), tensor) for name, tensor in tensors.items())
    return {name: tensor for name, tensor in renamed if name is not None}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a .safetensors file, under our names.

    Raises WeightsError: no such file, or not a safetensors file.
    """
    if not path.is_file():
        what = f"{path} is not a file" if path.exists() else f"no weights at {path}"
        raise WeightsError(f"{what}: give a .safetensors file")
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        raise WeightsError(f"{path} is a pickle: convert it with: stream-recon convert {path} OUT.safetensors")
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path} is not a readable safetensors file: {error}") from error
    if any(name.startswith(PUBLISHED_MARK) for name in tensors):
        return from_published(tensors)
    return {_module_name(name): tensor for name, tensor in tensors.items()}


def _module_name(name: str) -> str:
    """The name in `StreamingNetwork` of a tensor in a file of this program."""
    for old, new in PREFIXES:
        name = old.sub(new, name)
    return name


def load_network(path: Path, config: NetworkConfig) -> StreamingNetwork:
    """A network in evaluation mode, in fp32, with the weights of ``path``.

    Tensors of a point head are ignored where the config has none. Raises WeightsError: an unreadable
    file, or a tensor that is missing, unexpected or of another shape; it names one.
    """
    tensors, origin = read_tensors(path), str(path)
    if not config.point_head:
        tensors = {name: t for name, t in tensors.items() if not name.startswith("point_head.")}
    # On the meta device: drawing random weights for the full-size network would take longer than reading its file.
    with torch.device("meta"):
        network = StreamingNetwork(config)
    check_tensors(network.state_dict(), tensors, origin)
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    check_values(tensors, origin)
    network.load_state_dict(tensors, strict=True, assign=True)
    network.make_constants()
    return network.eval().requires_grad_(False)


def check_tensors(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raises WeightsError, naming a tensor, unless both have the same names and shapes."""
    missing, unexpected = sorted(set(expected) - set(tensors)), sorted(set(tensors) - set(expected))
    for names, what in ((missing, "missing"), (unexpected, "unexpected")):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            raise WeightsError(f"{origin} does not fit this preset: tensor {names[0]} is {what}{more}")
    for name, tensor in expected.items():
        if tensor.is_floating_point() and not tensors[name].is_floating_point():
            kind = str(tensors[name].dtype).removeprefix("torch.")
            raise WeightsError(f"{origin} is no network of this program: {name} has whole numbers ({kind})")
        shape, expected_shape = list(tensors[name].shape), list(tensor.shape)
        if shape != expected_shape:
            raise WeightsError(f"{origin} does not fit this preset: {name} has shape {shape}, not {expected_shape}")


def check_values(tensors: Mapping[str, Tensor], origin: str) -> None:
    """Raises WeightsError for results of a broken conversion: inf or nan in a tensor, which it names, or only zeros."""
    empty = True
    for name, tensor in tensors.items():
        if not tensor.numel():
            continue
        # aminmax makes no copy, as isfinite would; nan propagates through both.
        low, high = (float(value) for value in torch.aminmax(tensor))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise WeightsError(f"{origin} is damaged: tensor {name} holds inf or nan")
        empty = empty and (tensor.ndim < 2 or low == high == 0)
    if empty:
        raise WeightsError(f"{origin} is damaged: all its matrices are zero")


def convert_checkpoint(source: Path, target: Path) -> int:
    """Convert a published PyTorch checkpoint to safetensors under our names; returns the number of tensors written.

    ``target`` is replaced only when it is complete. Raises WeightsError: not a checkpoint, or one of another family;
    OutputError: ``target`` cannot be written.
    """
    if not source.is_file():
        raise WeightsError(f"no checkpoint at {source}")
    try:
        loaded = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
    except UnpicklingError as error:
        raise WeightsError(f"{source} is not a checkpoint, or holds more than tensors and is refused") from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        raise WeightsError(f"{source} is not a readable checkpoint: {error}") from error
    for key in ("model", "state_dict"):
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    tensors = {k.removeprefix("module."): v for k, v in loaded.items() if isinstance(v, Tensor)}
    if not any(name.startswith(PUBLISHED_MARK) for name in tensors):
        raise WeightsError(f"{source} is not of the LingBot-Map family: it has no tensor {PUBLISHED_MARK}*")
    ours = {name: t.contiguous() for name, t in from_published(tensors).items()}
    part = target.with_name(target.name + ".part")
    try:
        save_file(ours, part, metadata={"family": "lingbot-map"})
        part.replace(target)
    except (SafetensorError, OSError) as error:
        raise OutputError(f"cannot write {target}: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return len(ours)
