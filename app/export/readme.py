"""README.txt of an export: where it comes from, units, axes, and what each file holds."""

import textwrap

from stream_recon.app.export.job import ExportReport
from stream_recon.app.export.target import README_TITLE
from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.run_record import program_version
from stream_recon.app.result.unit import EAST_NORTH_UP, FIRST_CAMERA, OF_FILE, MetricUnit

AXES = {
    FIRST_CAMERA: "World: the axes of the first camera: x right, y down, z forward.",
    EAST_NORTH_UP: "World: x east, y north, z up.",
    OF_FILE: "World: the axes of the file that the scale was taken from.",
}
OWN_UNIT = (
    "Unit: the reconstruction's own; the surfaces of the first frames lie at about distance 1. A single camera does "
    "not see metres."
)


def readme(form: str, result: ResultFolder, told: ExportReport) -> str:
    """The text of the file."""
    run, cameras = result.run, result.cameras
    lines = [
        f"{README_TITLE}: {form}",
        "",
        f"Made by stream-recon {program_version()} from {result.folder.resolve().name} (source: {run['source']}).",
        told.summary,
        "",
        *_world(result.metres),
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


def _world(metres: MetricUnit | None) -> list[str]:
    if metres is None:
        return [AXES[FIRST_CAMERA], OWN_UNIT]
    error = "not known" if metres.error is None else f"about {100 * metres.error:.2g} %"
    lines = [AXES[metres.world], f"Unit: metres, by {metres.given} ({metres.how}); error of the scale: {error}."]
    if metres.origin is not None and metres.world == EAST_NORTH_UP:
        latitude, longitude, height = metres.origin
        lines.append(f"Origin: latitude {latitude:.7f}, longitude {longitude:.7f} degrees, height {height:.2f} m.")
    elif metres.origin is not None:
        x, y, z = metres.origin
        lines.append(f"Origin: ({x:.0f}, {y:.0f}, {z:.0f}) of that file's coordinates.")
    return lines
