"""The body of the command ``convert``."""

from pathlib import Path

from stream_recon.app.cli.console import DONE, PlainConsole
from stream_recon.configs.errors import OutputError


def run(source: Path, target: Path, *, overwrite: bool) -> int:
    """Convert a published checkpoint into the format that ``--weights`` takes; gives the exit code.

    Raises:
        WeightsError: no checkpoint of the family.
        OutputError: ``target`` exists (without ``overwrite``), is called otherwise, or cannot be written.
    """
    if target.exists() and not overwrite:
        raise OutputError(f"{target} exists: use --overwrite, or another OUT.safetensors")
    if target.suffix != ".safetensors":
        raise OutputError(f"{target}: a file of weights is called OUT.safetensors")

    from stream_recon.models.weights import convert_checkpoint

    count = convert_checkpoint(source, target)
    PlainConsole(soft_wrap=True).print(f"{count} tensors written to {target}")
    return DONE
