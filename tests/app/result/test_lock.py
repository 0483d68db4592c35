"""One writer a folder: runs that start at the same time, and what killed ones leave."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from stream_recon.app.result import writer as writer_module
from stream_recon.app.result.lock import LOCK_NAME, FolderLock
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.configs.errors import OutputError
from tests.app.fake_engine import fake_result, frames, prepared, run_info

HOLD = (
    "import sys, time; from pathlib import Path; from stream_recon.app.result.lock import FolderLock\n"
    "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
)


def test_a_second_one_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "out"):
        with pytest.raises(
            OutputError, match=rf"another run is writing to .*out \(process {os.getpid()} on .*\): wait"
        ):
            FolderLock(tmp_path / "out")
        assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK_NAME]
    assert not (tmp_path / "out").exists()
    FolderLock(tmp_path / "out").release()


def test_what_was_there_before_stays(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    FolderLock(tmp_path / "mine").release()
    assert list((tmp_path / "mine").iterdir()) == []
    with FolderLock(tmp_path / "new"):
        (tmp_path / "new" / "result").write_text("x")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["result"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError, match="is a file"):
        FolderLock(tmp_path / "file")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / LOCK_NAME).symlink_to(tmp_path / "file")
    with pytest.raises(OutputError, match="cannot write"):
        FolderLock(tmp_path / "linked")
    assert (tmp_path / "file").read_text() == "x"


def test_the_lock_of_a_killed_run_is_taken_over(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path / "out"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    with pytest.raises(OutputError, match=f"process {process.pid} on"):
        FolderLock(tmp_path / "out")
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (tmp_path / "out" / LOCK_NAME).exists()
    writer = ResultWriter(tmp_path / "out", run_info())
    writer.add(fake_result(prepared(frames(1)[0])))
    writer.finish(RunSummary(interrupted=False))
    assert not (tmp_path / "out" / LOCK_NAME).exists()


def test_of_many_that_want_it_at_once_one_gets_it(tmp_path: Path) -> None:
    inside, most, refused = 0, 0, 0
    counting = threading.Lock()

    def want() -> None:
        nonlocal inside, most, refused
        for _ in range(50):
            try:
                lock = FolderLock(tmp_path / "out")
            except OutputError:
                with counting:
                    refused += 1
                continue
            with counting:
                inside += 1
                most = max(most, inside)
            with counting:
                inside -= 1
            lock.release()

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and refused < 200


def test_two_writers_do_not_mix(tmp_path: Path) -> None:
    first = ResultWriter(tmp_path / "out", run_info())
    for overwrite in (False, True):
        with pytest.raises(OutputError, match="another run is writing to"):
            ResultWriter(tmp_path / "out", run_info(), overwrite=overwrite)
    first.add(fake_result(prepared(frames(1)[0])))
    first.finish(RunSummary(interrupted=False))
    with pytest.raises(OutputError, match="use --overwrite"):
        ResultWriter(tmp_path / "out", run_info())
    ResultWriter(tmp_path / "out", run_info(), overwrite=True).close()


def test_a_run_killed_while_it_begins_leaves_a_folder_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = fake_result(prepared(frames(1)[0]))
    for before in (False, True):
        folder = tmp_path / str(before)
        if before:
            whole = ResultWriter(folder, run_info())
            whole.add(result)
            whole.finish(RunSummary(interrupted=False))
        # As far as each step of the beginning, and no further.
        for step in ("mkdir", "PointCloud", "CameraFiles", "replace_json"):

            def killed(*_: object, **__: object) -> None:
                raise KeyboardInterrupt

            with monkeypatch.context() as patch:
                target = Path if step == "mkdir" else writer_module
                writer = ResultWriter(folder, run_info(), overwrite=folder.exists())
                patch.setattr(target, step, killed)
                with pytest.raises(KeyboardInterrupt):
                    writer.add(result)
            writer._release()
            ResultWriter(folder, run_info(), overwrite=True).close()
