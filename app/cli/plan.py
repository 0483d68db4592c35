"""Command ``plan``: what fits in a GPU's memory for a source, and the command to run it."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_recon.app.cli.console import DONE, PlainConsole, reported
from stream_recon.app.cli.options import option
from stream_recon.configs.errors import InputError, OutputError, ResourceError
from stream_recon.configs.schema import load_preset, parse_size, preset_names, preset_to_toml, table_to_toml

if TYPE_CHECKING:
    import torch
    from rich.console import Console
    from rich.table import Table

    from stream_recon.app.planning.budget import DeviceRates
    from stream_recon.app.planning.search import Configuration, PlannedRun

OWN_CONTEXT_BYTES = 300 * 2**20
"""Memory of the CUDA context of a process that has run no kernel; a run's own context is larger."""


@reported
def plan_command(
    source: Annotated[str, typer.Argument(help="Video file, folder of images, camera number (0), or address.")],
    memory: Annotated[
        str | None, option("GPU memory, such as 8GB; default: what is free on this machine's GPU.")
    ] = None,
    preset: Annotated[str | None, option("Only this preset or TOML file; default: all presets.")] = None,
    write: Annotated[Path | None, option("Write the first choice as a preset file.", metavar="FILE.toml")] = None,
    overwrite: Annotated[bool, option("Replace that file if it exists.", "--overwrite")] = False,
) -> int:
    """Print what fits in a GPU's memory.

    That is preset, window, image size, expected frames/s and memory. Nothing is reconstructed, and no GPU is needed.
    """
    import torch

    from stream_recon.app.planning.budget import H200, measure_rates
    from stream_recon.app.planning.search import search_configurations
    from stream_recon.app.result.files import replace_file
    from stream_recon.cache.cache_dtypes import CACHE_CHOICES, cache_policy

    _check_target(write, overwrite)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None
    budget = parse_size(memory, "--memory") if memory else _free_memory(device)
    presets = [(name, load_preset(name)) for name in ([preset] if preset else preset_names())]
    name, size = _name_and_size(source)
    rates = measure_rates(device) if device else H200
    caches = [name for name in CACHE_CHOICES if device is None or cache_policy(name).runs_on(device)]
    planned = search_configurations(presets, size, budget, rates, caches)
    out = PlainConsole(soft_wrap=True)
    out.print(f"{name}, {size[0]}x{size[1]}, in {budget / 1e9:.2f} GB of GPU memory; best first:")
    out.print(_table(planned))
    _print_notes(out, rates, planned, measured=device is not None)
    first = planned[0].configuration
    if write:
        replace_file(write, lambda file: file.write(preset_to_toml(first.preset).encode()))
    _print_use(out, source, first, write)
    return DONE


def _check_target(write: Path | None, overwrite: bool) -> None:
    """Raises OutputError where a preset cannot be written there."""
    if write and write.exists() and not overwrite:
        raise OutputError(f"{write} exists: use --overwrite, or another --write FILE.toml")
    if write and write.suffix != ".toml":
        raise OutputError(f"--write {write}: a preset file's name ends in .toml")


def _name_and_size(source: str) -> tuple[str, tuple[int, int]]:
    """Name of a source, and width and height of its first frame. Raises StreamReconError."""
    from stream_recon.app.sources.frame_choice import FrameChoice
    from stream_recon.app.sources.source import open_source

    with open_source(source, FrameChoice(max_frames=1)) as frames:
        frame = next(frames, None)
        if frame is None:
            raise InputError(f"{frames.name} sent no frame")
        return frames.name, (frame.rgb.shape[1], frame.rgb.shape[0])


def _free_memory(device: "torch.device | None") -> int:
    """Bytes that a run could use of the device. This process has a context there, too, which ends with it."""
    import torch

    if device is None:
        raise ResourceError("there is no CUDA device whose memory could be read: use --memory, such as --memory 8GB")
    free, _ = torch.cuda.mem_get_info(device)
    return int(free) + OWN_CONTEXT_BYTES


def _table(planned: "list[PlannedRun]") -> "Table":
    from rich.table import Table

    table = Table("preset", "window", "image", "cache", "memory", "frames/s")
    for choice in planned:
        configuration = choice.configuration
        table.add_row(
            configuration.preset.name,
            str(configuration.preset.stream.window),
            "x".join(map(str, configuration.image_size)),
            configuration.cache,
            f"{choice.memory.total / 1e9:.1f} GB",
            f"{1 / choice.seconds:.0f}",
        )
    return table


def _print_notes(out: "Console", rates: "DeviceRates", planned: "list[PlannedRun]", *, measured: bool) -> None:
    where = "this machine's GPU" if measured else "there is no CUDA device to measure"
    out.print(
        f"Frames/s: the network on an {rates.name} ({where}) with a full window, without reading, writing and viewer. "
        "Memory: peak of a stream of any length, CUDA context included."
    )
    if not measured and any(choice.configuration.cache == "fp8" for choice in planned):
        out.print("Cache fp8 needs a GPU of compute capability 8.9 or more (Ada, Hopper and newer).")


def _print_use(out: "Console", source: str, configuration: "Configuration", file: Path | None) -> None:
    from stream_recon.models.embedded import EMBEDDED_PRESET

    original = load_preset(configuration.base)
    command = ["stream-recon", source, "--preset", str(file or configuration.base)]
    out.print("To run the first:")
    if file is None and configuration.preset != original:
        stream, image = configuration.preset.stream, configuration.preset.image
        changed = {"window": stream.window, "special_budget": stream.special_budget}
        out.print(f"a copy of preset {configuration.base} (--write FILE.toml writes it) with")
        tables = table_to_toml("stream", changed) + table_to_toml("image", dataclasses.asdict(image))
        out.print(tables.rstrip())
        command[-1] = "FILE.toml"
    if configuration.preset.network != load_preset(EMBEDDED_PRESET).network:
        command += ["--weights", "CHECKPOINT.safetensors"]
    if configuration.cache != "full":
        command += ["--cache", configuration.cache]
    out.print(shlex.join(command))
