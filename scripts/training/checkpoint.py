"""Weights files of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from stream_recon.app.result.files import replace_file
from stream_recon.models.weights import check_tensors, read_tensors

WEIGHTS_FILE = "model.safetensors"
AUXILIARY_FILE = "auxiliary.safetensors"


def serialise(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as safetensors in bf16."""
    plain = {name: t.detach().to("cpu", torch.bfloat16).contiguous() for name, t in tensors.items()}
    return bytes(save(plain, metadata={"family": "lingbot-map"}))


def save_weights(folder: Path, weights: Mapping[str, Tensor], auxiliary: Mapping[str, Tensor]) -> None:
    """Write the averaged weights of the network and of the auxiliary head."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / WEIGHTS_FILE, lambda file: file.write(serialise(weights)), durable=True)
    replace_file(folder / AUXILIARY_FILE, lambda file: file.write(serialise(auxiliary)), durable=True)


@torch.no_grad()
def load_into(module: nn.Module, path: Path, fresh: Sequence[str] = ()) -> None:
    """Fill a module with the tensors of a file.

    ``fresh``: tensors whose names begin with one of these may be missing, and stay as they are.

    Raises:
        WeightsError: unreadable, or another tensor is missing, one is unexpected or of another shape.
    """
    tensors, targets = read_tensors(path), module.state_dict()
    required = {name: t for name, t in targets.items() if name in tensors or not name.startswith(tuple(fresh))}
    check_tensors(required, tensors, str(path))
    for name, target in required.items():
        target.copy_(tensors[name])
