"""How much work a run does for each frame of a scan, by the machine."""

from dataclasses import replace
from pathlib import Path

import pytest

from stream_recon.app.cli.scan_load import PATCHES, RunLoad, load_of_rest, load_of_scan
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.pipeline import cpu_threads
from stream_recon.app.result.depth import depth_path, read_depth
from stream_recon.app.result.resume import read_partial_result
from stream_recon.app.sources.preprocess import plan_image
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
    monkeypatch.setattr(cpu_threads, "usable_cores", lambda: cores)
    load = load_of_scan(RunLoad(ModelChoice(device=device), mapping))  # type: ignore[arg-type]
    patches = load.model.load_preset().image.max_patches
    assert (load.mapping, patches == PATCHES) == ("off" if is_lighter else mapping, is_lighter)
    assert load.threads == (cores - 1 if is_lighter else None)


@pytest.mark.parametrize("most", [PATCHES, 48])
@pytest.mark.parametrize("size", [(1280, 720), (960, 1280)])
def test_the_rest_of_a_scan_has_images_of_the_size_of_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, size: tuple[int, int]
) -> None:
    preset = ModelChoice(max_patches=most).load_preset()
    transform = plan_image(size, preset.image, preset.network.patch_size)
    write_run(tmp_path / "scan", finish=False)
    partial = read_partial_result(tmp_path / "scan")
    assert partial is not None
    depth = replace(read_depth(depth_path(partial.folder, partial.last.index)), transform=transform)
    monkeypatch.setattr("stream_recon.app.result.depth.read_depth", lambda path: depth)
    rest = load_of_rest(RunLoad(ModelChoice(), "full"), partial)
    assert rest.mapping == "full" and rest.threads is None
    image = rest.model.load_preset().image
    assert plan_image(size, image, preset.network.patch_size).network_size == transform.network_size
