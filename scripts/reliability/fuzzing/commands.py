"""Cases of whole commands: exports, films, batches, resumed runs, two processes at once, kills, full disks."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from fuzzing.faults import check_whole, end_or_kill, scale_result, write_small_result
from fuzzing.mutate import broken_text
from stream_recon.app.batch.summary import compared_means, comparison, differences, read_summary
from stream_recon.app.cli import main as command_line
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.export.formats import FORMATS, export
from stream_recon.app.export.job import ExportOptions
from stream_recon.app.export.render.film import FilmOptions, render_film
from stream_recon.app.export.target import check_target
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.lock import FolderLock
from stream_recon.app.result.run_record import RunSummary
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.sources.source import open_source
from stream_recon.configs.errors import OutputError, StreamReconError
from tests.app.batch.fakes import batch_of, room_scene, run
from tests.app.boxroom import room_result
from tests.app.fake_engine import FakeEngine, fake_result, frames, prepared, run_info

EXPORTS = ["trajectory", "depth", "transforms", "glb"]
"""Formats that take less than a second; the others share their reading and their targets."""
SIZE = (64, 48)


def _content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def _write_room(folder: Path, draw: random.Random) -> None:
    """A result of the box room, in some cases with a damaged file."""
    writer = ResultWriter(folder, replace(run_info(), options={"source": "nowhere.mp4", "stride": 1}))
    count = draw.choice([0, 1, 3, 3, 3])
    for index in range(count):
        writer.add(room_result(index))
    writer.finish(RunSummary(interrupted=False, frames_reconstructed=count))
    if not count:
        assert not folder.exists(), "a result without a frame"
    elif draw.random() < 0.5:
        record = json.loads((folder / "run.json").read_text())
        key = draw.choice([*record, "metric_scale", "refinement", "segments", "verdict"])
        record[key] = draw.choice([5, -1, None, "x", [], {}, [[]], True, {"scale": -1}, {"name": "metre", "scale": 2}])
        (folder / "run.json").write_text(json.dumps(record))
    elif draw.random() < 0.5:
        path = draw.choice([path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".ply", ".txt")])
        path.write_bytes(broken_text(path.read_text(errors="replace"), draw))


def _waiting_target(folder: Path, name: str, draw: random.Random) -> Path:
    """A target of a command, at which something of the user's may be."""
    target, mine = folder / name, folder / "mine"
    match draw.randrange(6):
        case 0:
            target.write_text("keep")
        case 1:
            target.symlink_to(mine / "keep.txt")
        case 2:
            target.mkdir()
            (target / "keep.txt").write_text("keep")
        case 3:
            os.mkfifo(target)
        case _:
            pass
    return target


@contextmanager
def _users_files_stay(folder: Path, result: Path) -> Iterator[None]:
    """The folder ``mine``, the result and all files with the word keep are the same after the block."""
    (folder / "mine").mkdir()
    (folder / "mine" / "keep.txt").write_text("keep")
    before = _content(result)
    try:
        yield
    finally:
        assert (folder / "mine" / "keep.txt").read_text() == "keep", "a link was followed"
        assert _content(result) == before, "the result has changed"
        assert not [p for p in folder.iterdir() if p.name.startswith(".")], "temporary files are left"


def export_case(folder: Path, source: Path, draw: random.Random) -> None:
    """An export is complete or absent, and replaces nothing of the user's."""
    out = folder / "out"
    _write_room(out, draw)
    name = draw.choice(EXPORTS)
    with _users_files_stay(folder, out):
        target = _waiting_target(folder, "there" + (*FORMATS[name].suffixes, "")[0], draw)
        had = target.read_bytes() if target.is_file() else None
        options = ExportOptions(
            draw.choice([None, "all", "keyframes", "2", "0", "x"]), points=draw.choice([1, 100, 1_000_000])
        )
        try:
            target, _ = export(out, name, target, options)
        except StreamReconError:
            assert (target.read_bytes() if target.is_file() else None) == had, "a file was replaced"
            raise
        assert had is None, "a file of the user was replaced"
        if target.is_dir():
            assert (target / "README.txt").read_text().startswith("stream-recon export"), "an export without README"


def render(folder: Path, source: Path, draw: random.Random) -> None:
    """A film is complete or absent."""
    out = folder / "out"
    _write_room(out, draw)
    with _users_files_stay(folder, out):
        target = _waiting_target(folder, draw.choice(["film.mp4", "a:b.mp4", "f%d.mp4", "film"]), draw)
        had = target.is_file()
        path = draw.choice(["trajectory", "orbit", "top-down"])
        render_film(out, target, FilmOptions(path, (64, 48), 0.1, 30.0, draw.choice([1, 1000])))  # type: ignore[arg-type]
        assert not had, "a file of the user was replaced"
        with open_source(str(target)) as film:
            assert len(list(film)) == 3, "frames of the film are missing"


def batch(folder: Path, source: Path, draw: random.Random) -> None:
    """A batch goes on beside damaged manifests, results and stray files; every scene is done or says why not.
    A damaged summary is compared with the whole one."""
    scenes = [room_scene(folder / "data" / name, 5) for name in ("a", "b")]
    out = folder / "out"
    run(batch_of(folder / "data", out, scenes))
    for _ in range(draw.choice([1, 1, 2])):
        files = [
            p for p in sorted(out.rglob("*")) if p.is_file() and p.suffix in (".json", ".ply", ".npz", ".csv", ".txt")
        ]
        path = draw.choice(files)
        match draw.randrange(5):
            case 0:
                path.unlink()
            case 1:
                path.write_bytes(b"")
            case 2:
                path.unlink()
                os.mkfifo(path) if draw.random() < 0.5 else path.symlink_to("/dev/zero")
            case 3 if path.suffix == ".json":
                path.write_text(
                    json.dumps(draw.choice([5, [], {}, None, {"key": 5}, {"key": {}, "result": {}, "files": 3}]))
                )
            case _:
                path.write_bytes(broken_text(path.read_text(errors="replace"), draw))
    summary = run(batch_of(folder / "data", out, scenes))
    for row in summary["scenes"]:
        assert row["status"] == "done" or row["reason"], "a scene that is neither done nor explained"
        if row["status"] == "done":
            assert row["frames"] == 5 and len(read_result(out / row["name"])) == 5, "frames of a scene are missing"
    text = json.dumps(summary, indent=1)
    (folder / "a.json").write_text(text)
    (folder / "b.json").write_bytes(broken_text(text, draw))
    ours, other = read_summary(folder / "a.json"), read_summary(folder / "b.json")
    comparison(ours, other)
    compared_means(ours, other)
    differences(ours, other)


def _program(*arguments: str) -> int:
    """Exit code of the command line, run in this process with an engine without a network."""
    setattr(ModelChoice, "load", lambda _: FakeEngine())  # noqa: B010
    sys.argv = ["stream-recon", *arguments]
    try:
        command_line.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def resume(folder: Path, source: Path, draw: random.Random) -> None:
    """A resumed run ends with the frames of its source, and refuses a changed one."""
    images, out = folder / "images", folder / "out"
    images.mkdir()
    noise = np.random.default_rng(draw.randrange(99)).integers(0, 255, (100, 200, 3)).astype(np.float32)
    wide = np.asarray(cv2.normalize(cv2.GaussianBlur(noise, (0, 0), 3.0), None, 0, 255, cv2.NORM_MINMAX), np.uint8)
    for number in range(12):
        cv2.imwrite(str(images / f"{number:02}.png"), wide[10:58, 3 * number : 3 * number + 64])
    writer = ResultWriter(folder / "whole", run_info())
    words = [str(images), "--no-viewer", "--mapping", "off", "--no-mesh", "--dense", "off"]
    words = words if draw.random() < 0.8 else [*words, "--stride", "2"]
    writer.close()
    limit = draw.randrange(2, 7)
    assert _program(*words, "-o", str(out)) == 0
    _cut_off(out, limit)
    files = sorted(images.iterdir())
    name = draw.choice(["none", "none", "other", "shifted", "fewer", "size", "unreadable"])
    match name:
        case "other":
            for path in files:
                cv2.imwrite(str(path), 255 - wide[40:88, 100:164])
        case "shifted":
            files[0].unlink()
        case "fewer":
            for path in files[1:]:
                path.unlink()
        case "size":
            for path in files:
                cv2.imwrite(str(path), np.asarray(cv2.resize(cv2.imread(str(path)), (32, 24)), np.uint8))
        case "unreadable":
            for path in files:
                path.write_bytes(b"nothing")
    code = _program(*words, "-o", str(out), "--resume")
    if name == "none":
        assert code == 0 and len(read_result(out)) == len(range(0, 12, 2 if "--stride" in words else 1)), (
            "frames are missing"
        )
    else:
        assert code == 2, f"{name}: exit code {code}"
        assert len(read_result(out)) == limit, "frames are lost"


def _cut_off(folder: Path, count: int) -> None:
    """Make a finished result one that was killed after so many frames."""
    lines = (folder / "cameras.json").read_text().splitlines(keepends=True)
    kept = "".join(lines[: 2 + count]).rstrip().rstrip(",")
    (folder / "cameras.json").write_text(kept + "\n]}\n")
    lines = (folder / "trajectory.txt").read_text().splitlines(keepends=True)
    (folder / "trajectory.txt").write_text("".join(lines[:count]))
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps(record | {"interrupted": True}))


def together(folder: Path, source: Path, draw: random.Random) -> None:
    """Two commands on one result at once: each is done as a whole, or refused."""
    out = folder / "out"
    write_small_result(out)
    factors = [draw.uniform(0.2, 5), draw.uniform(5, 30)]
    actions: list[Callable[[], object]] = [
        lambda: _scale(out, factors[0]),
        draw.choice([lambda: _scale(out, factors[1]), lambda: export(out, "glb", folder / "a.glb")]),
    ]
    children = []
    for action in actions:
        child = os.fork()
        if not child:
            try:
                time.sleep(draw.random() * 0.02)
                action()
                os._exit(0)
            except StreamReconError:
                os._exit(2)
            except BaseException:  # noqa: BLE001  # any other is a finding
                os._exit(1)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert set(codes) <= {0, 2}, f"exit codes {codes}"
    # One after the other, the second scales what the first has scaled.
    check_whole(out, [*factors, factors[0] * factors[1]])


def _scale(out: Path, factor: float) -> None:
    """What the command ``scale`` does, with its lock."""
    with FolderLock(out):
        scale_result(out, factor)


@contextmanager
def _small_tmpfs(place: Path, kilobytes: int) -> Iterator[bool]:
    """A file system of that size at ``place``; gives False, and changes nothing, where mounting is not allowed."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"nodev,size={kilobytes}k", "tmpfs", str(place)]
    made = subprocess.run(mount, check=False, stderr=subprocess.DEVNULL).returncode == 0
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def small_disk(folder: Path, source: Path, draw: random.Random) -> None:
    """A disk that is really full, during a run, a scale and an export: finished frames are kept, files agree."""
    with _small_tmpfs(folder / "disk", draw.choice([draw.randrange(16, 400, 4), 4000])) as made:
        if not made:
            return
        out, written = folder / "disk" / "out", 0
        try:
            with closing(ResultWriter(out, run_info())) as writer:
                for frame in frames(6):
                    writer.add(fake_result(prepared(frame)))
                    written += 1
                writer.finish(RunSummary(interrupted=False))
        except StreamReconError:
            assert len(read_result(out)) >= written if written else True, "a finished frame is lost"
            raise
        actions: list[Callable[[], object]] = [
            lambda: scale_result(out, 3.0),
            lambda: export(out, "glb", out.with_name("a.glb")),
        ]
        ballast = folder / "disk" / "ballast"
        with ballast.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(4096)):
                pass
        os.truncate(ballast, max(0, ballast.stat().st_size - 4096 * draw.randrange(60)))
        try:
            draw.choice(actions)()
        finally:
            ballast.unlink()
            check_whole(out, [3.0])


WRITES = ("open", "write", "pwrite", "fsync", "replace", "link", "unlink", "rename", "ftruncate", "mkdir")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def broken_off(folder: Path, source: Path, draw: random.Random) -> None:
    """A kill at any system call that writes, or a disk that is full from there on: of a run, a scale or an export."""
    out, left, kind = folder / "out", draw.randrange(60), draw.choice(["run", "scale", "export"])
    factor, number = draw.uniform(0.2, 30), draw.choice([0, *FULL])
    actions: dict[str, Callable[[], object]] = {
        "run": lambda: write_small_result(out),
        "scale": lambda: scale_result(out, factor),
        "export": lambda: export(out, "trajectory", folder / "there", overwrite=True),
    }
    if kind != "run":
        write_small_result(out)
    if has_old := kind == "export" and draw.random() < 0.5:
        actions[kind]()

    def count(name: str) -> None:
        real = getattr(os, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= name != "open" or bool(arguments[1] & os.O_CREAT)
            if left >= 0 or (number and name == "unlink"):
                return real(*arguments, **options)
            if number:
                raise OSError(number, os.strerror(number))
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(os, name, counted)

    process = os.fork()
    if not process:
        for name in WRITES:
            count(name)
        try:
            actions[kind]()
        except OutputError:
            pass
        except BaseException:  # noqa: BLE001  # any other is a finding
            (folder / "traceback").write_text(traceback.format_exc())
            os._exit(1)
        os._exit(0)
    end_or_kill(process)
    assert not (folder / "traceback").exists(), (folder / "traceback").read_text()
    if kind == "export":
        check_target(folder / "there", True, is_file=False)
        assert has_old <= (folder / "there").exists(), "an export is lost"
        assert not (folder / "there").exists() or (folder / "there" / "README.txt").stat().st_size > 0, "half an export"
        check_whole(out, [])
    elif kind == "scale":
        check_whole(out, [factor])
    elif (out / "cameras.json").exists():
        result = read_result(out)
        assert len(list(result)) == len(result.cameras)


COMMANDS: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "export": export_case,
    "render": render,
    "batch": batch,
    "resume": resume,
    "together": together,
    "small_disk": small_disk,
    "broken_off": broken_off,
}
