"""State of a training on disk, from which a stopped or killed one goes on. A file of tensors, read without pickle."""

from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from stream_recon.app.result.files import replace_file
from stream_recon.app.splat.trainer import Trainer
from stream_recon.configs.errors import ConfigError, OutputError

KEY = "training"


def write_checkpoint(path: Path, trainer: Trainer, key: str) -> None:
    """Write the state of a training; ``key``: what a training that goes on must share. Raises OutputError."""
    state = {name: value.detach().contiguous().cpu() for name, value in trainer.state().items()}
    content = save(state, {KEY: key})
    replace_file(path, lambda file: file.write(content))


def read_checkpoint(path: Path, trainer: Trainer, key: str) -> None:
    """Let a training go on from a file.

    Raises ConfigError where it is of another training, OutputError where it is missing or damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            if (file.metadata() or {}).get(KEY) != key:
                raise ConfigError(f"{path} is of other options, or of other poses: leave out --resume to begin again")
            state: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        trainer.load(state)
    except (OSError, SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise OutputError(f"{path} is missing or damaged: leave out --resume to begin again ({error})") from error
