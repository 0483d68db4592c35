"""How much work a run does for each frame of a scan, by the machine."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from stream_recon.app.core import cores as core_numbers
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.result.folder import RUN_NAME
from stream_recon.app.run.earlier import EarlierRun
from stream_recon.app.run.options import RunJob, RunOptions
from stream_recon.app.run.scan_load import PATCHES, begins_again, run_load
from stream_recon.app.sources.scan_folder import FRAMES_NAME
from stream_recon.app.sources.source import Source
from tests.app.result.test_writer import DONE, write_run


@pytest.mark.parametrize(
    "cores, mapping, device, is_lighter",
    [
        (2, "full", "cpu", True),
        (8, "full", "cpu", False),
        (2, "stream", "cpu", False),  # nothing would correct the poses afterwards
        (2, "full", "cuda", False),
    ],
)
def test_scans_are_lighter_on_few_cores_and_where_refinement_follows(
    monkeypatch: pytest.MonkeyPatch, cores: int, mapping: str, device: str, is_lighter: bool
) -> None:
    monkeypatch.setattr(core_numbers, "usable_cores", lambda: cores)
    options = RunOptions(model=ModelChoice(device=device), mapping=mapping)  # type: ignore[arg-type]
    scan = cast(Source, SimpleNamespace(feedback=object()))
    load = run_load(options, scan)
    assert run_load(options, cast(Source, SimpleNamespace(feedback=None))).options is options
    patches = load.options.model.load_preset().image.max_patches
    assert (load.options.mapping, patches == PATCHES) == ("off" if is_lighter else mapping, is_lighter)
    assert load.threads == (cores - 1 if is_lighter else None) and load.is_lighter is is_lighter


@pytest.mark.parametrize("finish", [True, False])
@pytest.mark.parametrize("patches, again", [(PATCHES, True), (208, False)])
def test_a_scan_that_had_less_work_begins_again_once_it_is_over(
    tmp_path: Path, finish: bool, patches: int, again: bool
) -> None:
    scan, folder = tmp_path / "scan", tmp_path / "scan-recon"
    scan.mkdir()
    frames = scan / FRAMES_NAME
    frames.write_text("")
    writer = write_run(folder, finish=finish)
    if not finish:
        writer.checkpoint(DONE)
    record = json.loads((folder / RUN_NAME).read_text())
    record["preset"]["image"]["max_patches"] = patches
    record["interrupted"] = not finish
    (folder / RUN_NAME).write_text(json.dumps(record))
    earlier = EarlierRun.find(folder, resume=True, overwrite=False)
    assert (earlier.record is not None) is finish and (earlier.partial is None) is finish
    job = RunJob(str(scan), RunOptions(), folder)
    assert not begins_again(job, cast(Source, SimpleNamespace(live=True)), earlier)
    assert begins_again(job, cast(Source, SimpleNamespace(live=False)), earlier) is again
    frames.unlink()
    assert not begins_again(job, cast(Source, SimpleNamespace(live=False)), earlier)
