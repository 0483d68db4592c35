"""kill -9 at random moments of runs that are revised all the time: what is left tells one story, or says where not."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.core.ply import VERTEX
from stream_recon.app.result.cameras import iterate_cameras
from stream_recon.app.result.folder import read_result
from tests.app.fake_engine import trajectory_of
from tests.app.media import write_video

ROOT = Path(__file__).parents[3]
STEP = 100.0
"""Each revision lifts all frames by so much, which no point of a frame is away from its camera."""
PROGRAM = textwrap.dedent("""
    import os, random, signal, sys, time
    from dataclasses import replace
    from pathlib import Path
    from stream_recon.app.result import depth
    from stream_recon.app.result.writer import ResultWriter
    from stream_recon.app.core.types import FrameRevision, Revision
    from stream_recon.app.run.dispatch import PipelineConfig
    from stream_recon.app.run.pipeline import RunSetup, reconstruct
    from stream_recon.app.sources.source import open_source
    from tests.app.fake_engine import FakeEngine, pose_at, run_info
    import torch

    STEP, TRIALS = 100.0, 8
    OFTEN = PipelineConfig(checkpoint_seconds=0.01, checkpoint_share=1.0)

    class Lift:
        wants_grey = False
        figures = {}
        status_line = ""

        def __init__(self, notes):
            self.notes, self.indices, self.height = notes, [], 0

        def pose(self, index):
            T = pose_at(index)
            T[1, 3] = STEP * self.height
            return T

        def push(self, result, frame):
            self.indices.append(result.index)
            items = [replace(result, T_world_camera=self.pose(result.index))]
            return [*items, *self.lift()] if result.index % 7 == 6 else items

        def lift(self):
            self.height += 1
            print(time.monotonic(), self.height, file=self.notes, flush=True)
            return [Revision(tuple(FrameRevision(i, self.pose(i)) for i in self.indices))]

        def finish(self):
            return self.lift()

    def run(out):
        with open(str(out) + ".notes", "w") as notes, open_source(sys.argv[1]) as source:
            writer = ResultWriter(out, run_info())
            reconstruct(source, FakeEngine(seconds=0.002), writer, setup=RunSetup(Lift(notes), config=OFTEN))

    base, dice, whole_s = Path(sys.argv[2]), random.Random(5), None
    for trial in range(-1, TRIALS):
        out, begun = base / str(trial), time.monotonic()
        child = os.fork()
        if not child:
            run(out)
            os._exit(0)
        if whole_s is not None:
            # Evenly over the run, the end with its rebuilding included.
            time.sleep(whole_s * (trial + dice.random()) / TRIALS)
            os.kill(child, signal.SIGKILL)
        killed = time.monotonic()
        os.waitpid(child, 0)
        if whole_s is None:
            whole_s = time.monotonic() - begun
        (base / (str(trial) + ".killed")).write_text(str(killed))
""")


def heights(values: NDArray[np.float64]) -> set[int]:
    return set(np.round(values / STEP).astype(int).tolist())


def point_heights(folder: Path) -> set[int]:
    data = (folder / "points.ply").read_bytes()
    begin = data.index(b"end_header\n") + 11
    count = int(data[:begin].split(b"element vertex ")[1].split()[0])
    return heights(np.frombuffer(data, VERTEX, count, begin)["y"].astype(np.float64))


@pytest.mark.slow
def test_a_kill_leaves_one_story_or_says_so(tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.mp4", 91, size=(64, 48))
    subprocess.run([sys.executable, "-c", PROGRAM, str(video), str(tmp_path)], cwd=ROOT, check=True, timeout=300)
    states: set[tuple[bool, bool]] = set()
    for trial in range(-1, 8):
        out = tmp_path / str(trial)
        if not (out / "cameras.json").exists():
            continue
        cameras = list(iterate_cameras(out / "cameras.json"))
        if len(cameras) < 4:
            continue
        run = read_result(out).run
        kept = run["revisions"]
        head = json.loads((out / "cameras.json").read_bytes().splitlines()[0][:-1] + b"}")["revisions"]
        states.add((kept["cameras"] == kept["trajectory"], kept["cameras"] == kept["points"]))
        assert kept["trajectory"] <= head <= kept["cameras"], "run.json is never ahead with what is in agreement"
        ours = [camera.T_world_camera[1, 3] for camera in cameras]
        if kept["trajectory"] == kept["cameras"]:
            lines = trajectory_of(out)
            # The last frame's line may not have been written yet.
            assert len(cameras) - 1 <= len(lines) <= len(cameras)
            np.testing.assert_allclose(lines[:, 2], ours[: len(lines)], atol=1e-4)
        if kept["points"] == kept["cameras"]:
            # As above, the last frame alone may have no points yet.
            assert heights(np.array(ours[:-1])) <= point_heights(out) <= heights(np.array(ours))
        if trial == -1:
            assert kept["cameras"] == kept["points"] == 14 and run["interrupted"] is False
            continue
        killed = float((tmp_path / f"{trial}.killed").read_text())
        told = np.loadtxt(tmp_path / f"{trial}.notes", ndmin=2).reshape(-1, 2)
        lost = told[(told[:, 0] < killed - 2) & (told[:, 1] > head)]
        assert not len(lost), "what was known two seconds ago is on the disk"
    assert len(states) > 1, "the moments were chosen so that all kinds of states are met"
