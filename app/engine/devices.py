"""Where the network runs: the choice of a device, and the trial of one whose operations may lack or err."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stream_recon.app.engine.stream import StepOptions, StreamRunner
from stream_recon.configs.errors import ResourceError
from stream_recon.configs.schema import Preset
from stream_recon.models.network import StreamingNetwork

CPU = torch.device("cpu")
TRIAL_GRID = (6, 8)
"""Patch rows and columns of the trial's images."""
TRIAL_TOLERANCE = 0.02
"""Largest difference of the trial's outputs, absolute or relative: devices differ by far less, errors by more."""


def choose_device(requested: str, *, has_mps: bool | None = None) -> torch.device:
    """The device by the name of a `DeviceChoice`; ``auto``: an NVIDIA GPU, else Apple's, else the CPU.

    ``has_mps``: whether torch runs on an Apple GPU here; None: as torch says. Raises ResourceError: it is not there.
    """
    mps = torch.backends.mps.is_available() if has_mps is None else has_mps
    present = {"cuda": torch.cuda.is_available(), "mps": mps, "cpu": True}
    name = next(name for name, is_there in present.items() if is_there) if requested == "auto" else requested
    if name not in present:
        raise ResourceError(f"unknown device {name!r}: use auto, {', '.join(present)}")
    if not present[name]:
        raise ResourceError(f"no {name.upper()} device is available: use --device cpu")
    return torch.device("cuda", torch.cuda.current_device()) if name == "cuda" else torch.device(name)


def trial_outputs(network: StreamingNetwork, preset: Preset, device: torch.device) -> list[Tensor]:
    """Poses and log depth, on the CPU, of a short stream on a device, to which the network is moved."""
    count, side = preset.stream.scale_frames + 2, preset.network.patch_size
    height, width = TRIAL_GRID[0] * side, TRIAL_GRID[1] * side
    coarse = torch.rand(1, 3, *TRIAL_GRID, generator=torch.Generator().manual_seed(0))
    picture = torch.nn.functional.interpolate(coarse, size=(height, width + count), mode="bicubic").clamp(0, 1)
    images = torch.cat([picture[..., shift : shift + width] for shift in range(count)])
    stream = StreamRunner(network.to(device), preset, TRIAL_GRID, StepOptions(precision="fp32"))
    batches = [images[: count - 2], *images[count - 2 :].split(1)]
    steps = [stream.step(batch)[0] for batch in batches]
    return [values.to(CPU) for step in steps for values in (step.pose, step.log_depth)]


def runs_alike(outputs: Callable[[torch.device], Sequence[Tensor]], device: torch.device) -> bool:
    """Whether a computation has on a device the ``outputs`` that it has on the CPU, and all the operations it needs."""
    expected = outputs(CPU)
    try:
        return all(
            torch.allclose(value, exact, rtol=TRIAL_TOLERANCE, atol=TRIAL_TOLERANCE)
            for value, exact in zip(outputs(device), expected, strict=True)
        )
    except (RuntimeError, TypeError):  # the latter for a data type
        return False
