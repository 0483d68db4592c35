"""Stages of a test, run one at a time."""

from pathlib import Path
from typing import Any

from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.chain import ChainEnd, RunPlan, run_stages
from stream_recon.app.stages.stage import Stage, StageContext

ONLY_FRAMES = RunOptions(mapping="off", mesh=False)
"""A run without back end and stages."""


def run_stage(folder: Path, stage: Stage, open_again: Any = None, **context: Any) -> ChainEnd:
    """Run one stage, also where it is done."""
    return run_stages(RunPlan((stage,), again=True), StageContext(folder, open_again, **context))
