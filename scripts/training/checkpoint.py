"""Weights files of a run: complete ones, and parts for storage that limits the size of a file."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from stream_recon.configs.errors import WeightsError
from stream_recon.models.weights import check_tensors, read_tensors
from training.metrics_file import METRICS_FILE, last_event

WEIGHTS_FILE = "model.safetensors"
AUXILIARY_FILE = "auxiliary.safetensors"
LATEST_FILE = "latest.safetensors"
PART_BYTES = 15 * 1024 * 1024


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: a reader finds the old content or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def serialise(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as safetensors in bf16."""
    plain = {name: t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in tensors.items()}
    return bytes(save(plain, metadata={"family": "lingbot-map"}))


@dataclass(frozen=True)
class Saved:
    """Parts and digest of a save, as noted in the metrics file; `join_parts` checks against it."""

    parts: int
    bytes: int
    sha256: str


def save_weights(
    folder: Path, weights: Mapping[str, Tensor], auxiliary: Mapping[str, Tensor], latest: Mapping[str, Tensor]
) -> Saved:
    """Write the network's averaged weights, in one file and in parts, the auxiliary head's, and the latest weights of
    both, from which a run resumes.

    ``model-00.part``, ``model-01.part`` .. are slices of ``model.safetensors``, one after another.
    """
    folder.mkdir(parents=True, exist_ok=True)
    content = serialise(weights)
    replace_file(folder / WEIGHTS_FILE, content)
    parts = [content[i : i + PART_BYTES] for i in range(0, len(content), PART_BYTES)]
    for number, part in enumerate(parts):
        replace_file(part_path(folder, number), part)
    replace_file(folder / AUXILIARY_FILE, serialise(auxiliary))
    replace_file(folder / LATEST_FILE, serialise(latest))
    return Saved(len(parts), len(content), hashlib.sha256(content).hexdigest())


def part_path(folder: Path, number: int) -> Path:
    return folder / f"model-{number:02d}.part"


def join_parts(folder: Path, target: Path) -> str:
    """Join the parts in ``folder``, checked against the last save in its metrics file; returns the SHA-256.

    Raises:
        WeightsError: a part or the metrics file is missing, or the parts are of different saves.
    """
    saved = last_event(folder, "saved")
    if saved is None:
        raise WeightsError(f"no save is noted in {folder / METRICS_FILE}: fetch it along with the parts")
    paths = [part_path(folder, number) for number in range(saved["parts"])]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise WeightsError(f"{folder} lacks {missing[0]}: fetch all {saved['parts']} parts")
    content = b"".join(path.read_bytes() for path in paths)
    digest = hashlib.sha256(content).hexdigest()
    if digest != saved["sha256"]:
        raise WeightsError(f"the parts in {folder} do not add up to its last save: fetch all of them again")
    replace_file(target, content)
    return digest


def load_into(module: nn.Module, path: Path, fresh: Sequence[str] = ()) -> None:
    """Fill a module with the tensors of a file.

    ``fresh``: tensors whose names begin with one of these may be missing, and stay as they are.

    Raises:
        WeightsError: unreadable, or another tensor is missing, one is unexpected or of another shape.
    """
    fill(module.state_dict(), path, fresh)


@torch.no_grad()
def fill(targets: Mapping[str, Tensor], path: Path, fresh: Sequence[str] = ()) -> None:
    """Copy the tensors of a file into those of the same names; ``fresh`` as `load_into` has it.

    Raises:
        WeightsError: unreadable, or another tensor is missing, one is unexpected or of another shape.
    """
    tensors = read_tensors(path)
    wanted = {name: t for name, t in targets.items() if name in tensors or not name.startswith(tuple(fresh))}
    check_tensors(wanted, tensors, str(path))
    for name, target in wanted.items():
        target.copy_(tensors[name])


def steps_so_far(folder: Path) -> int:
    """Steps that led to the last save in a folder, including those of the runs that it resumed.

    Raises:
        WeightsError: the folder's metrics file is missing, or notes no save.
    """
    saved = last_event(folder, "saved")
    if saved is None:
        raise WeightsError(f"no save is noted in {folder / METRICS_FILE}: a run resumes from a complete folder")
    return int(saved.get("all_steps", saved["step"]))
