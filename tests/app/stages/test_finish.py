"""The mesh as a last step of a run."""

from pathlib import Path

import pytest

from stream_recon.app.core.cancel import Cancel
from stream_recon.app.mesh.build import MeshReport
from stream_recon.app.metric_scale.scale_source import parse_scale_source
from stream_recon.app.result.mesh import MESH_NAME
from stream_recon.app.result.run_record import METRIC_SCALE, REFINEMENT
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.stages import finish
from stream_recon.app.stages.finish import Finisher, FinishSteps
from tests.app.export.rooms import write_room
from tests.app.mesh.signed_wall import write_wall


class Heard(RunObserver):
    def __init__(self) -> None:
        self.shares: list[int] = []
        self.reports: list[MeshReport | None] = []
        self.messages: list[str] = []

    def on_mesh(self, done: int, total: int) -> None:
        self.shares.append(100 * done // total)

    def on_meshed(self, report: MeshReport | None) -> None:
        self.reports.append(report)

    def on_message(self, line: str, *, warning: bool = False) -> None:
        self.messages.append(line)


def test_a_mesh_is_made_and_reported(tmp_path: Path) -> None:
    folder, heard = write_wall(tmp_path / "out", 4).folder, Heard()
    assert Finisher(folder, None, heard).run(FinishSteps(refine=False, mesh=True))
    assert (folder / MESH_NAME).is_file() and heard.shares[-1] == 100
    (report,) = heard.reports
    assert report is not None and report.triangles > 500 and not heard.messages


def test_a_result_without_a_surface_is_complete_without_a_mesh(tmp_path: Path) -> None:
    write_room(tmp_path / "out", 4, source=False)
    for path in (tmp_path / "out" / "depth").iterdir():
        path.unlink()
    heard = Heard()
    assert Finisher(tmp_path / "out", None, heard).mesh()
    assert heard.messages[0].startswith("no mesh: ") and not heard.reports


def test_ctrl_c_leaves_the_result_without_a_mesh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, heard, stop = write_wall(tmp_path / "out", 4).folder, Heard(), Cancel()

    def pressed(done: int, total: int) -> None:
        stop.requested = done > 20

    class Signals:
        def __enter__(self) -> Cancel:
            return stop

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(finish, "cancel_on_signals", Signals)
    heard.on_mesh = pressed  # type: ignore[method-assign]
    assert not Finisher(folder, None, heard).run(FinishSteps(refine=False, mesh=True))
    assert heard.reports == [None] and not list(folder.glob(f"{MESH_NAME}*"))


def test_another_scale_makes_the_mesh_again(tmp_path: Path) -> None:
    folder = write_wall(tmp_path / "out", 4).folder
    Finisher(folder, None).mesh()
    before = (folder / MESH_NAME).read_bytes()
    finisher = Finisher(folder, None)
    assert finisher.scale(parse_scale_source("frames:0,3,10")) is not None
    assert not (folder / MESH_NAME).exists(), "it is of the old unit"
    assert finisher.mesh() and (folder / MESH_NAME).read_bytes() != before


def test_steps_that_remain(tmp_path: Path) -> None:
    steps = FinishSteps.parse(refine=True, scale_from="height:1.6", mesh=True)
    assert steps and steps.remaining({}, tmp_path) == steps
    (tmp_path / MESH_NAME).touch()
    done = {REFINEMENT: {}, METRIC_SCALE: {"scale": 1}}
    assert not steps.remaining(done, tmp_path)
    assert steps.remaining({REFINEMENT: {}}, tmp_path).scale == steps.scale
    assert not FinishSteps.parse(refine=False, scale_from=None)
