#!/usr/bin/env python3
"""Kill runs at random moments and check that finished frames are kept, files are readable, and runs resume.

    scripts/reliability/kill_trial.py [VIDEO] [--kills 50] [--minutes 30] [--frames 48] [--stride 2] [--seed S]
                          [--kinds run,batch,split] [--more=OPTIONS]

A run with refinement, a batch of two scenes, and a batch whose scenes are split into chunks (they need 48 frames) are
each killed ``--kills`` times, for ``--minutes`` at most, at moments spread evenly over their duration, and resumed
after each kill until they finish; then they start again. The exit code is 1 if anything was lost. Every process is a
fork of one that has imported everything, so that kills hit loading, frames, refinement and the rewriting of files, not
the start of Python.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import cv2
import plyfile
import torch  # noqa: F401  # imported once, before forks

import stream_recon.app.cli.progress
import stream_recon.app.engine.engine
import stream_recon.app.run.session  # noqa: F401
from stream_recon.app.cli import main as command_line
from stream_recon.app.result.cloud import POINTS_NAME
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.run_record import RUN_NAME
from stream_recon.configs.errors import StreamReconError

SAMPLE = Path(__file__).resolve().parents[2] / "app" / "sample" / "walkthrough.mp4"
cv2.setNumThreads(1)  # threads of OpenCV do not live on in a fork, which would wait for them


class Trial:
    """One kind of command, killed again and again.

    ``command``: words that write or resume the folder after them. ``frames``: number of frames of each finished result,
    by its folder's name. ``windows``: number of chunks of each result.
    """

    def __init__(self, name: str, command: Sequence[str], frames: dict[str, int], windows: int | None = None) -> None:
        self.name, self._command, self._frames, self._windows = name, command, frames, windows
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []

    def run(self, folder: Path, kills: int, minutes: float, dice: random.Random) -> None:
        """Kill ``kills`` times or for ``minutes``; check the results after each kill and each round."""
        begin = time.monotonic()
        deadline = begin + 60 * minutes
        self._end(self._start(folder / "measured"), None)
        seconds, out = time.monotonic() - begin, folder / "measured"
        self._check_finished(out)
        for number in range(1_000_000):
            out, known = folder / str(number), dict[str, int]()
            while True:
                enough = self.counts["kills"] >= kills or time.monotonic() > deadline
                moment = None if enough else dice.uniform(0, seconds)
                code = self._end(self._start(out), moment)
                if code != -signal.SIGKILL:
                    break
                self.counts["kills"] += 1
                known = self._check_left(out, known)
            if code != 0:
                self.wrong.append(f"{out}: exit code {code}")
                return
            self._check_finished(out)
            self.counts["rounds finished"] += 1
            shutil.rmtree(out)
            if enough:
                return

    def _start(self, out: Path) -> int:
        child = os.fork()
        if child:
            return child
        for number in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
        sys.argv = ["stream-recon", *self._command, str(out)]
        try:
            command_line.main()
        except SystemExit as end:
            os._exit(end.code if isinstance(end.code, int) else 1)
        os._exit(0)

    def _end(self, child: int, moment: float | None) -> int:
        if moment is not None:
            time.sleep(moment)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)

    def _check_left(self, out: Path, known: dict[str, int]) -> dict[str, int]:
        """See what a killed process left; gives how many frames each folder has."""
        frames_of: dict[str, int] = {}
        for record in sorted(out.rglob(RUN_NAME)):
            folder = record.parent
            name = folder.relative_to(out).as_posix()
            try:
                frames_of[name] = len(list(result := read_result(folder)))
                if frames_of[name]:
                    plyfile.PlyData.read(str(folder / POINTS_NAME))
            except (StreamReconError, OSError, plyfile.PlyParseError) as error:
                if (folder / "cameras.json").exists():
                    self.wrong.append(f"{folder}: {error}")
                continue
            self.counts["killed after the last frame"] += not result.run["interrupted"]
        print(f"{self.name}: kill {self.counts['kills']}; wrong so far: {len(self.wrong)}", flush=True)
        published = sum(count for name, count in frames_of.items() if not name.startswith("."))
        for name, count in known.items():
            now = frames_of.get(name, count if name.startswith(".") and (published or len(frames_of)) else 0)
            if now < count:
                self.wrong.append(f"{out}/{name}: {count} frames before, {now} after")
        return frames_of

    def _check_finished(self, out: Path) -> None:
        for name, frames in self._frames.items():
            try:
                result = read_result(out / name)
                count = len(list(result))
                plyfile.PlyData.read(str(out / name / POINTS_NAME))
            except (StreamReconError, OSError, plyfile.PlyParseError) as error:
                self.wrong.append(f"{out}/{name}: {error}")
                continue
            self.counts["gone on with"] += len(result.run["resumed"])
            if count != frames or result.run["interrupted"] or "refinement" not in result.run:
                self.wrong.append(f"{out}/{name}: {count} of {frames} frames, or not refined")
            if result.run["options"].get("chunks") != self._windows:
                self.wrong.append(f"{out}/{name}: not of {self._windows} windows")


def trials(video: Path, root: Path, frames: int, stride: int, more: str = "") -> dict[str, Trial]:
    """The kinds. ``root`` gets two scenes; ``more``: further options of each command."""
    root.mkdir()
    for name in ("a", "b"):
        (root / f"{name}{video.suffix}").symlink_to(video.resolve())
    choice = ["--max-frames", str(frames), "--stride", str(stride), "--device", "cpu", *more.split()]
    run, batch = (str(video), *choice, "--no-viewer", "--resume", "-o"), ("batch", str(root), *choice, "--workers", "1")
    both = {f"{name}{video.suffix}": frames for name in ("a", "b")}
    return {
        "run": Trial("a run", run, {".": frames}),
        "batch": Trial("a batch", (*batch, "-o"), both),
        "split": Trial("a batch of windows", (*batch, "--split", "2", "-o"), both, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("video", nargs="?", type=Path, default=SAMPLE, metavar="VIDEO")
    options = {"kills": 50, "minutes": 30.0, "frames": 48, "stride": 2, "seed": 1, "kinds": "run,batch,split"}
    options["more"] = ""
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    arguments = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as work:
        by_kind = trials(arguments.video, Path(work) / "root", arguments.frames, arguments.stride, arguments.more)
        for kind in arguments.kinds.split(","):
            trial = by_kind[kind]
            folder = Path(work) / kind
            folder.mkdir()
            trial.run(folder, arguments.kills, arguments.minutes, random.Random(arguments.seed))
            counts = ", ".join(f"{count} {what}" for what, count in sorted(trial.counts.items()))
            print(f"{trial.name}: {counts}; wrong: {len(trial.wrong)}", flush=True)
            print(*trial.wrong, sep="\n", end="\n" * bool(trial.wrong), flush=True)
            wrong += len(trial.wrong)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
