"""The chain of stages: order, what is done, what is left out, Ctrl-C, errors, lock and verdict."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from stream_recon.app.core.cancel import Cancel, Cancelled
from stream_recon.app.result.folder import MESH_NAME, read_run
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import VERDICT
from stream_recon.app.result.verdict import Verdict
from stream_recon.app.run.listeners import RunObserver
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.mesh import MeshStage
from stream_recon.app.stages.place import ScaleStage
from stream_recon.app.stages.stage import Stage, StageContext
from stream_recon.configs.errors import ConfigError, InputError, OutputError
from tests.app.export.rooms import write_room
from tests.app.mesh.signed_wall import write_wall
from tests.app.stages.chains import run_stage


class Heard(RunObserver):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.shares: list[float] = []
        self.lines: list[str] = []
        self.messages: list[str] = []
        self.verdicts: list[Verdict] = []

    def on_stage(self, name: str, number: int, count: int) -> None:
        self.stages.append(name)

    def on_share(self, step: str, share: float, note: str = "") -> None:
        self.shares.append(share)

    def on_result(self, lines: Sequence[str]) -> None:
        self.lines += lines

    def on_message(self, line: str, *, warning: bool = False) -> None:
        self.messages.append(line)

    def on_verdict(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)


@dataclass(frozen=True)
class Step(Stage):
    """A stage that does what a test wants."""

    name = "step"
    absent = "no step"
    stopped = "step stopped"
    outlasts_errors: ClassVar[bool] = True
    work: Callable[[StageContext], object] = lambda context: None
    done: bool = False
    reason: str | None = None

    @classmethod
    def of(cls, options: RunOptions) -> None:
        return None

    def is_done(self, context: StageContext) -> bool:
        return self.done

    def why_not(self, context: StageContext) -> str | None:
        return self.reason

    def run(self, context: StageContext) -> Sequence[str]:
        self.work(context)
        return ["it is done"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_room(tmp_path / "out", 4, source=False)
    return tmp_path / "out"


def fail(context: StageContext) -> None:
    raise InputError("nothing to see")


def test_a_mesh_is_made_and_reported(tmp_path: Path) -> None:
    folder, heard = write_wall(tmp_path / "out", 4).folder, Heard()
    end = run_stages(RunPlan.of(RunOptions(mapping="off")), StageContext(folder, observer=heard))
    assert end.is_complete and (folder / MESH_NAME).is_file() and heard.shares[-1] == 1
    assert heard.stages == ["mesh"] and heard.lines[0].startswith("mesh: mesh.glb, ") and not heard.messages
    assert 0 < read_run(folder)["mesh"]["covered"] <= 1
    (verdict,) = heard.verdicts
    assert end.verdict == verdict and read_run(folder)[VERDICT] == verdict.to_json()


def test_a_result_without_a_surface_is_complete_without_a_mesh(folder: Path) -> None:
    for path in (folder / "depth").iterdir():
        path.unlink()
    heard = Heard()
    assert run_stage(folder, MeshStage(), observer=heard).is_complete
    assert heard.lines[0].startswith("no mesh: ")


def test_ctrl_c_leaves_the_result_without_a_mesh(tmp_path: Path) -> None:
    folder, cancel = write_wall(tmp_path / "out", 4).folder, Cancel()

    class Pressing(Heard):
        def on_share(self, step: str, share: float, note: str = "") -> None:
            if share > 0.2:
                cancel.request()

    heard = Pressing()
    end = run_stage(folder, MeshStage(), observer=heard, cancel=cancel)
    assert not end.is_complete and heard.lines == [MeshStage.stopped] and len(heard.verdicts) == 1
    assert not list(folder.glob(f"{MESH_NAME}*"))
    with pytest.raises(Cancelled):
        end.check()


def test_another_scale_makes_the_mesh_again(tmp_path: Path) -> None:
    folder = write_wall(tmp_path / "out", 4).folder
    run_stage(folder, MeshStage())
    before = (folder / MESH_NAME).read_bytes()
    assert run_stage(folder, ScaleStage("frames:0,3,10")).is_complete
    assert not (folder / MESH_NAME).exists() and "mesh" not in read_run(folder), "it is of the old unit"
    assert run_stage(folder, MeshStage()).is_complete and (folder / MESH_NAME).read_bytes() != before


def test_stages_that_are_done_are_left_out_unless_they_are_to_run_again(folder: Path) -> None:
    did: list[int] = []
    stages = (Step(lambda _: did.append(1), done=True), Step(lambda _: did.append(2)))
    context = StageContext(folder)
    assert RunPlan(stages).remaining(context) == stages[1:]
    run_stages(RunPlan(stages), context)
    assert did == [2]
    run_stages(RunPlan(stages, again=True), context)
    assert did == [2, 1, 2]


def test_the_options_say_which_stages_follow_and_in_which_order() -> None:
    names = [stage.name for stage in RunPlan.of(RunOptions(scale_from="height:1.6")).stages]
    assert names == ["refine", "dense depth", "metric scale", "mesh"]
    assert [stage.name for stage in RunPlan.of(RunOptions(mapping="stream")).stages] == ["mesh"]
    assert not RunPlan.of(RunOptions(mapping="off", mesh=False)).stages
    for wrong in ({"mapping": "off"}, {"scale_from": "height:1"}, {"keep_map": False}):
        with pytest.raises(ConfigError, match="--onto"):
            RunOptions(onto=Path("place"), **wrong)  # type: ignore[arg-type]


def test_what_a_result_cannot_have_is_said_and_the_others_follow(folder: Path) -> None:
    heard, did = Heard(), list[int]()
    plan = RunPlan((Step(reason="there is none"), Step(lambda _: did.append(1))))
    assert run_stages(plan, StageContext(folder, observer=heard)).is_complete
    assert heard.messages == ["no step: there is none"] and did == [1] and heard.stages == ["step"]


def test_the_others_outlast_an_error_which_comes_at_the_end(folder: Path) -> None:
    heard, did = Heard(), list[int]()
    end = run_stages(RunPlan((Step(fail), Step(lambda _: did.append(1)))), StageContext(folder, observer=heard))
    assert did == [1] and end.is_complete and str(end.failed["step"]) == "nothing to see" and heard.verdicts
    with pytest.raises(InputError, match=r"nothing to see; .* is complete"):
        end.check()
    assert run_stage(folder, Step(fail)).verdict is None, "nothing was done"


def test_an_error_ends_the_chain_where_a_stage_does_not_outlast_it(folder: Path) -> None:
    class Needed(Step):
        outlasts_errors = False

    with pytest.raises(InputError, match="nothing to see"):
        run_stages(RunPlan((Needed(fail), Step(lambda _: pytest.fail("it went on")))), StageContext(folder))
    FolderLock(folder).release()


def test_a_request_to_end_ends_the_chain_before_the_next_stage(folder: Path) -> None:
    heard = Heard()
    plan = RunPlan((Step(lambda context: context.cancel.request()), Step(lambda _: pytest.fail("it went on"))))
    assert not run_stages(plan, StageContext(folder, observer=heard)).is_complete
    assert heard.lines == ["it is done", "step stopped"]


def test_stages_hold_the_folders_lock(folder: Path) -> None:
    def try_it(context: StageContext) -> None:
        with pytest.raises(OutputError, match="another"):
            FolderLock(folder)

    assert run_stage(folder, Step(try_it)).is_complete
    with FolderLock(folder) as lock:
        assert run_stage(folder, Step(try_it), lock=lock).is_complete
        with pytest.raises(OutputError, match="another"):
            run_stage(folder, Step())
