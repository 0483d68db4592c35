"""README.txt of an export: where it comes from, units, axes, and what each file holds."""

import textwrap

from stream_recon.app.export.job import Told
from stream_recon.app.export.target import README_TITLE
from stream_recon.app.output.folder import ResultFolder
from stream_recon.app.output.run_record import program_version

WORLD = (
    "World: the axes of the first camera: x right, y down, z forward.",
    "Unit: the reconstruction's own; the surfaces of the first frames lie at about distance 1. A single camera does "
    "not see metres.",
)


def readme(form: str, result: ResultFolder, told: Told) -> str:
    """The text of the file."""
    run, cameras = result.run, result.cameras
    lines = [
        f"{README_TITLE}: {form}",
        "",
        f"Made by stream-recon {program_version()} from {result.folder.resolve().name} (source: {run['source']}).",
        told.summary,
        "",
        *WORLD,
        *told.notes,
    ]
    if isinstance(run.get("mapping"), dict):
        lines.append("Poses and depth were refined by geometry.")
    stretches = 1 + max((camera.stretch for camera in cameras), default=0)
    if stretches > 1:
        lines.append(
            f"Nothing connects {stretches} stretches of the source: where each lies beside the others is a guess."
        )
    if run["interrupted"]:
        lines.append("The run was interrupted or still going on: this is what was there.")
    lines += [f"Note: {warning}" for warning in told.warnings]
    return "\n".join(textwrap.fill(line, 100) if line else "" for line in lines) + "\n"
