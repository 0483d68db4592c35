"""Names of a result's Gaussian splats, and whether they belong to its present poses."""

from pathlib import Path

from stream_recon.app.result.folder import ResultFolder
from stream_recon.app.result.run_record import SPLATS

SPLATS_NAME = "splats.ply"
CHECKPOINT_NAME = "splats.checkpoint"
"""State of a training that was stopped."""


def revision_of(result: ResultFolder) -> int:
    """Number of the last change of the result's poses."""
    numbers = result.run.get("revisions")
    found = numbers.get("cameras") if isinstance(numbers, dict) else None
    return found if isinstance(found, int) else 0


def current_splats(result: ResultFolder) -> Path | None:
    """The file of the result's splats; None where it has none, or its poses or unit have changed since."""
    record, path = result.run.get(SPLATS), result.folder / SPLATS_NAME
    is_current = isinstance(record, dict) and record.get("revision") == revision_of(result)
    return path if is_current and path.is_file() else None
