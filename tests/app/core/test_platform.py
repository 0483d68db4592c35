"""Files, locks and imports where the modules and calls of POSIX systems are absent, as on Windows."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stream_recon.app.core.platform import OPEN_FLAGS, lock_file, read_at, write_at

WITHOUT_POSIX = """
import importlib, os, pkgutil, signal, sys, types

import asyncio, multiprocessing.connection, subprocess, tempfile  # the standard library's own files need them
import cv2, numpy, torch

locked = set()

def locking(file, mode, count):
    # As Windows does it: by file, at the present position, refused at once.
    status = os.fstat(file)
    key = status.st_dev, status.st_ino, os.lseek(file, 0, os.SEEK_CUR)
    if key in locked:
        raise PermissionError(13, "Permission denied")
    locked.add(key)

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
sys.modules["msvcrt"] = types.SimpleNamespace(LK_NBLCK=2, locking=locking)
for name in ("pread", "pwrite", "preadv", "pwritev", "nice", "fork", "sched_getaffinity", "getuid", "O_NOFOLLOW",
             "O_NONBLOCK", "O_CLOEXEC", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "pthread_sigmask"):
    delattr(signal, name)
import stream_recon.app
for module in pkgutil.walk_packages(stream_recon.app.__path__, "stream_recon.app."):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        assert error.name.split(".")[0] not in ("fcntl", "resource", "pwd", "grp", "termios"), module.name
"""


def run_without_posix(code: str, folder: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX + code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_results_are_written_and_locked_without_posix(tmp_path: Path) -> None:
    code = """
from pathlib import Path
import numpy as np
from stream_recon.app.core.per_frame_arrays import PerFrameArrays
from stream_recon.app.core.input_file import open_regular
from stream_recon.app.result.lock import FolderLock
from stream_recon.configs.errors import OutputError

with FolderLock(Path("out")) as lock:
    try:
        FolderLock(Path("out"))
    except OutputError as error:
        assert "another run is writing" in str(error) and "process" in str(error), error
    else:
        raise AssertionError("locked twice")
table = PerFrameArrays(Path("."), time=(), position=(3,))
for number in range(2000):
    table.append(time=number, position=np.full(3, number))
assert table["time"][1500] == 1500 and (table["position"][[3, 1999]] == [[3] * 3, [1999] * 3]).all()
Path("x").write_bytes(b"a\\r\\nb")
assert open_regular(Path("x")).read() == b"a\\r\\nb"
"""
    run_without_posix(code, tmp_path)


def test_ctrl_break_ends_a_job_as_ctrl_c_does(tmp_path: Path) -> None:
    """Windows sends it to the processes of a job: the first one stops, those that it has started go on working."""
    code = """
import os, signal, sys
signal.SIGBREAK = signal.CTRL_BREAK_EVENT = signal.SIGUSR1
del signal.pthread_sigmask
from stream_recon.app.core.cancel import cancel_on_signals
from stream_recon.app.core.platform import END, INTERRUPT
from stream_recon.app.core.worker import ProcessWorker, serve, start_process

assert END is INTERRUPT is signal.SIGUSR1
with cancel_on_signals() as cancel:
    os.kill(os.getpid(), INTERRUPT)
    assert cancel.requested
    try:
        os.kill(os.getpid(), INTERRUPT)
    except KeyboardInterrupt:
        print("at once")
process, connection = start_process("list", serve, list)
worker = ProcessWorker(connection, "list")
worker.submit("append").future.result()
os.kill(process.pid, signal.SIGINT)
worker.submit("append").future.result()
worker.close()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "at once\n"), done.stderr[-3000:]


def test_bytes_are_read_and_written_at_their_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index, without in enumerate((False, True)):
        if without:
            monkeypatch.delattr(os, "pread")
            monkeypatch.delattr(os, "pwrite")
        file = os.open(tmp_path / f"{index}", os.O_RDWR | os.O_CREAT | OPEN_FLAGS)
        try:
            os.write(file, b"0123456789")
            write_at(file, b"ab", 3)
            assert read_at(file, 4, 2) == b"2ab5" and read_at(file, 9, 8) == b"89"
            os.write(file, b"!")  # the file's own position has not moved
            assert read_at(file, 100, 0) == b"012ab56789!"
        finally:
            os.close(file)


def test_a_lock_is_held_until_the_file_is_closed(tmp_path: Path) -> None:
    first, second = (os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT) for _ in range(2))
    lock_file(first)
    with pytest.raises(BlockingIOError):
        lock_file(second)
    os.close(first)
    lock_file(second)
    os.close(second)
