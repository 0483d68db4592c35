"""Export of a result's Gaussian splats as PLY, or as SPZ for web viewers."""

from pathlib import Path

import numpy as np

from stream_recon.app.core.output_file import write_new
from stream_recon.app.core.splats import Splats, read_splats, splats_bytes
from stream_recon.app.core.spz import spz_bytes
from stream_recon.app.export.job import ExportJob, ExportReport
from stream_recon.app.result.folder import current_splats
from stream_recon.configs.errors import OutputError

SUFFIXES = (".ply", ".spz")


def write_splats_file(job: ExportJob, path: Path) -> ExportReport:
    """Write the file. Raises StreamReconError: there are no frames or no splats. OSError for system errors."""
    job.cameras("all")  # as all exports, where a result has no frames
    splats = job_splats(job)
    content = spz_bytes(splats) if path.name.endswith(SUFFIXES[1]) else splats_bytes(splats)
    write_new(path, content)
    notes = [
        "Gaussian splats with spherical harmonics of degree "
        f"{splats.sh_degree}, in the layout of 3D Gaussian splatting: logarithms of sizes, logits of opacity."
    ]
    if path.name.endswith(SUFFIXES[1]):
        notes = ["SPZ, version 2. Its axes are x right, y up, z backward: y and z are the negatives of those above."]
    return ExportReport(f"{len(splats)} splats, {len(content) / 1e6:.1f} MB.", notes)


def job_splats(job: ExportJob) -> Splats:
    """The splats of a result that are in the job's box. Raises OutputError where there are none."""
    path = current_splats(job.result)
    if path is None:
        raise OutputError(f"{job.result.folder} has no splats of its present poses: 'stream-recon splat' trains them")
    splats = read_splats(path)
    return splats if job.box is None else splats.take(np.flatnonzero(job.is_inside(splats.means)))
