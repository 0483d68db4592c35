"""How much work a run does for each frame of a scan, by the machine."""

from pathlib import Path

import pytest

from stream_recon.app.cli.scan_load import PATCHES, RunLoad, load_of_rest, load_of_scan
from stream_recon.app.core import cores as core_numbers
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.result.resume import read_partial_result
from tests.app.result.test_writer import write_run


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
    load = load_of_scan(RunLoad(ModelChoice(device=device), mapping))  # type: ignore[arg-type]
    patches = load.model.load_preset().image.max_patches
    assert (load.mapping, patches == PATCHES) == ("off" if is_lighter else mapping, is_lighter)


def test_the_rest_of_a_scan_has_images_of_the_size_of_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "scan", finish=False)
    partial = read_partial_result(tmp_path / "scan")
    assert partial is not None
    rest = load_of_rest(RunLoad(ModelChoice(), "full"), partial)  # its images are small
    assert rest.mapping == "full" and rest.model.max_patches == PATCHES
    monkeypatch.setattr("stream_recon.app.cli.scan_load.PATCHES", 0)
    assert load_of_rest(RunLoad(ModelChoice(), "full"), partial).model.max_patches is None
