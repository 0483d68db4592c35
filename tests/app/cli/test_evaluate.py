import dataclasses
import hashlib
import json
import os
import signal
import sys
import types
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import pytest

from stream_recon.app.cli.evaluate import evaluate_all, evaluate_folders
from stream_recon.app.cli.evaluate_tables import error_table, summary_lines
from stream_recon.app.core.cancel import Cancelled
from stream_recon.app.core.ground_truth import DepthMap
from stream_recon.app.core.transforms import rotation_matrix
from stream_recon.app.core.types import (
    Frame,
    FrameResult,
    FrameRevision,
    ImageTransform,
    Intrinsics,
    PreparedFrame,
    Revision,
)
from stream_recon.app.datasets.scene import Scene
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.app.evaluation.metrics import Metrics
from stream_recon.app.evaluation.scores import SEQUENCE_METRICS, Evaluation, summarise
from stream_recon.app.run import back_end
from stream_recon.app.run.options import RunOptions
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.stages.evaluate import evaluate_scene
from stream_recon.configs.errors import ConfigError, InputError, OutputError
from tests.app.datasets.folders import truth_of
from tests.app.fake_engine import fake_preset
from tests.app.stages.chains import ONLY_FRAMES

FOUR = replace(ONLY_FRAMES, frames=FrameChoice(2, max_frames=4))

SIZE, NETWORK_SIZE = (64, 48), (32, 24)
BASELINES = {"constant_depth", "ramp", "straight_line", "constant_velocity", "static"}
SHA256 = hashlib.sha256(b"weights").hexdigest()
ERRORS = [name for name in SEQUENCE_METRICS if name not in ("path_m", "gt_rot_deg", "delta1", "one_scale_ratio")]


class KnowingEngine:
    """Answers with the truth of the sequence, disturbed as asked for."""

    weights_sha256 = SHA256
    preset = fake_preset()
    device = "cpu"
    precision = "fp32"
    cache = "full"
    attention = "sdpa"
    threads = 0
    submaps = 1
    cache_use: dict[str, object] = {}  # noqa: RUF012
    reference_frames = ()

    def __init__(
        self, scene: Scene, scale: float = 1.0, noise: float = 0.0, wider: float = 1.0, by_pixel: bool = True
    ) -> None:
        """Depth is disturbed ``by_pixel``, else by the frame."""
        self.sequence = truth_of(scene)
        self.scale, self.noise, self.wider, self.by_pixel = scale, noise, wider, by_pixel
        self.resets = 0
        self.seen: list[int] = []
        self.reset()

    def reset(self) -> None:
        self.resets += 1
        self._rng = np.random.default_rng(3)

    def expect(self, frames: int | None) -> None:
        pass

    def prepare(self, frame: Frame) -> PreparedFrame:
        height, width = frame.rgb.shape[:2]
        transform = ImageTransform((width, height), (0, 0, width, height), NETWORK_SIZE)
        return PreparedFrame(frame.index, frame.timestamp, frame.rgb[1::2, 1::2], transform)

    def push(self, frame: PreparedFrame) -> Sequence[FrameResult]:
        self.seen.append(frame.index)
        return [self._answer(frame)]

    def finish(self) -> Sequence[FrameResult]:
        return []

    def _answer(self, frame: PreparedFrame) -> FrameResult:
        rng, (width, height) = self._rng, frame.transform.source_size
        pose = self.sequence.poses.get(frame.index, np.eye(4)).copy()
        pose[:3, 3] = (pose[:3, 3] + self.noise * rng.normal(size=3)) * self.scale
        truth = self.sequence.depth(frame.index)
        depth = np.ones(NETWORK_SIZE[::-1])
        if isinstance(truth, DepthMap):
            depth = np.maximum(truth.metres[1::2, 1::2].astype(np.float64), 0.05)
        disturbed = self.scale * np.exp(self.noise * rng.normal(size=depth.shape if self.by_pixel else ()))
        known = self.sequence.intrinsics or Intrinsics(60, 60, width / 2, height / 2)
        return FrameResult(
            index=frame.index,
            timestamp=frame.timestamp,
            T_world_camera=pose,
            intrinsics=dataclasses.replace(known, fx=known.fx / self.wider),
            depth=(depth * disturbed).astype(np.float32),
            confidence=np.full(depth.shape, 2, np.float32),
            rgb=frame.rgb,
            transform=frame.transform,
            is_keyframe=True,
        )


def write_sequence(folder: Path, frames: int = 9, depth: str | None = "dense", posed: list[int] | None = None) -> Scene:
    rng = np.random.default_rng(frames)
    for part in ("rgb", "depth", "sparse"):
        (folder / part).mkdir(parents=True)
    t = np.linspace(0, 1, frames)
    rotations = rotation_matrix(np.stack([0.1 * t, 0.3 * t**2, 0 * t, np.ones_like(t)], axis=1))
    lines = []
    for i in range(frames):
        stem = f"{i:06d}"
        cv2.imwrite(str(folder / "rgb" / f"{stem}.jpg"), rng.integers(0, 255, (SIZE[1], SIZE[0], 3), dtype=np.uint8))
        metres = 2 + np.sin(np.arange(SIZE[0]) / 9)[None] + np.linspace(0, 1, SIZE[1])[:, None]
        metres[:5] = 0  # unknown
        if depth == "dense":
            cv2.imwrite(str(folder / "depth" / f"{stem}.png"), np.rint(metres * 1000).astype(np.uint16))
        if depth == "sparse":
            (folder / "sparse" / f"{stem}.txt").write_text("10.5 20.5 200\n30 40 100\n", encoding="utf-8")
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = rotations[i], (np.sin(3 * t[i]), 0.1 * t[i], t[i])
        if posed is None or i in posed:
            lines.append(" ".join(str(x) for x in [i, *pose.ravel()]))
    if lines:
        (folder / "poses.txt").write_text("\n".join(lines), encoding="utf-8")
    (folder / "intrinsics.txt").write_text("60 60 32 24 64 48", encoding="utf-8")
    return Scene(folder.name, "sequence", folder, None)


@pytest.fixture
def sequence(tmp_path: Path) -> Scene:
    return write_sequence(tmp_path / "room")


@pytest.mark.parametrize("scale", [1.0, 0.02])
def test_the_truth_in_any_unit_has_no_error(sequence: Scene, scale: float) -> None:
    ours = evaluate_scene(KnowingEngine(sequence, scale), sequence, ONLY_FRAMES).final
    for name in ERRORS:
        assert getattr(ours, name) == pytest.approx(0, abs=1e-5), name
    assert ours.delta1 == 1
    assert ours.path_m > 1 and ours.gt_rot_deg > 1


def test_noise_shows_in_every_figure_it_touches(sequence: Scene) -> None:
    noisy = evaluate_scene(KnowingEngine(sequence, noise=0.05, wider=1.2), sequence, ONLY_FRAMES).final
    noisier = evaluate_scene(KnowingEngine(sequence, noise=0.2), sequence, ONLY_FRAMES).final
    assert 0 < noisy.ate_m < noisier.ate_m
    assert 0 < noisy.rpe_trans_m < noisier.rpe_trans_m
    assert 0 < noisy.absrel < noisier.absrel
    assert noisy.delta1 > noisier.delta1
    true_fov = 2 * np.degrees(np.arctan(32 / 60))
    assert noisy.fov_error_deg == pytest.approx(2 * np.degrees(np.arctan(1.2 * 32 / 60)) - true_fov)
    assert noisier.fov_error_deg == 0


class TruthStage:
    """Puts each result into another world and unit, and at the end every frame where it belongs."""

    wants_grey = False
    status_line = ""
    figures: ClassVar = {}

    def __init__(self, scene: Scene) -> None:
        self.sequence = truth_of(scene)
        self.depth_scales: dict[int, float] = {}

    def push(self, result: FrameResult, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
        truth = self.sequence.depth(result.index)
        assert isinstance(truth, DepthMap) and frame.index == result.index
        moved = dataclasses.replace(result, T_world_camera=np.eye(4), depth=5 * result.depth)
        self.depth_scales[result.index] = float(truth.metres[-1, -1] / moved.depth[-1, -1])
        return [moved]

    def finish(self) -> Sequence[FrameResult | Revision]:
        poses, camera = self.sequence.poses, self.sequence.intrinsics
        frames = [FrameRevision(i, poses[i], scale, camera) for i, scale in self.depth_scales.items()]
        return [Revision(tuple(frames))]


def test_a_revision_corrects_poses_depth_and_cameras_in_the_figures(
    sequence: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = KnowingEngine(sequence, noise=0.2, wider=1.2, by_pixel=False)
    plain = evaluate_scene(engine, sequence, ONLY_FRAMES)
    monkeypatch.setattr(back_end, "make_back_end", lambda *_, **__: TruthStage(sequence))
    staged = evaluate_scene(engine, sequence, ONLY_FRAMES)
    assert plain.final == plain.network == plain.causal == plain.online_final == staged.network
    assert staged.causal.ate_m is not None and staged.causal.ate_m > plain.final.ate_m
    assert staged.causal.absrel == pytest.approx(plain.final.absrel), "another unit is no error"
    assert staged.final == staged.online_final
    for name in ERRORS:
        assert getattr(staged.online_final, name) == pytest.approx(0, abs=1e-5), name
    content = staged.to_json()
    assert content["network"]["ate_m"] > 0.05 > content["ate_m"] == content["online_final"]["ate_m"]
    assert [str(cell) for cell in list(error_table(staged).columns[0].cells)[:2]] == ["ours", "network alone"]


def test_a_damaged_file_of_truth_ends_the_evaluation(sequence: Scene) -> None:
    (sequence.path / "depth" / "000008.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"000008\.png"):
        evaluate_scene(KnowingEngine(sequence), sequence, ONLY_FRAMES)


def test_ctrl_c_ends_the_evaluation(sequence: Scene) -> None:
    class Stopped(KnowingEngine):
        def push(self, frame: PreparedFrame) -> Sequence[FrameResult | Revision]:
            if frame.index == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return super().push(frame)

    with pytest.raises(Cancelled):
        evaluate_scene(Stopped(sequence), sequence, ONLY_FRAMES)


def test_stride_and_limit_reach_the_engine_on_a_fresh_stream(sequence: Scene) -> None:
    engine = KnowingEngine(sequence)
    assert evaluate_scene(engine, sequence, FOUR).frames == 4
    assert engine.seen == [0, 2, 4, 6]
    assert evaluate_scene(engine, sequence, FOUR) == evaluate_scene(engine, sequence, FOUR), "each on a new stream"
    assert engine.resets == 4


def test_frames_without_truth_are_left_out_of_the_pose_errors(tmp_path: Path) -> None:
    sequence = write_sequence(tmp_path / "gap", posed=[0, 1, 2, 6, 7, 8])
    evaluation = evaluate_scene(KnowingEngine(sequence), sequence, ONLY_FRAMES)
    assert (evaluation.posed, evaluation.frames) == (6, 9)
    assert evaluation.final.ate_m == pytest.approx(0, abs=1e-9)
    assert evaluation.final.rpe_rot_deg == pytest.approx(0, abs=1e-9)
    title = str(error_table(evaluation).title)
    assert "3 frames without a true pose" in title


def test_without_truth_figures_are_null(tmp_path: Path) -> None:
    sequence = write_sequence(tmp_path / "bare", depth=None, posed=[])
    (sequence.path / "intrinsics.txt").unlink()
    content = evaluate_scene(KnowingEngine(sequence), sequence, ONLY_FRAMES).to_json()
    assert content.pop("frames") == 9
    rows = content.pop("baselines")
    parts = [content.pop(name) for name in ("network", "causal", "online_final")]
    assert parts == [{"frames": 9, **content}] * 3
    assert set(content.values()) == {None}
    assert all(value is None for row in rows.values() for key, value in row.items() if key != "frames")


@pytest.mark.parametrize("frames", [1, 2])
def test_fewer_than_three_frames_have_no_pose_errors(sequence: Scene, frames: int) -> None:
    ours = evaluate_scene(
        KnowingEngine(sequence), sequence, replace(ONLY_FRAMES, frames=FrameChoice(max_frames=frames))
    ).final
    assert (ours.ate_m, ours.rpe_trans_m, ours.rpe_rot_deg, ours.path_m) == (None, None, None, None)
    assert ours.absrel == pytest.approx(0, abs=1e-6)


def test_sparse_truth_is_compared_at_its_points(tmp_path: Path) -> None:
    sequence = write_sequence(tmp_path / "sfm", depth="sparse")
    ours = evaluate_scene(KnowingEngine(sequence), sequence, ONLY_FRAMES).final
    assert ours.absrel == pytest.approx((0.25 + 0.5) / 2)  # constant 1 against 200 and 100, scaled by 150
    assert ours.delta1 == 0


def test_baselines_give_what_they_can_and_null_for_the_rest(sequence: Scene) -> None:
    evaluation = evaluate_scene(KnowingEngine(sequence), sequence, ONLY_FRAMES)
    rows = evaluation.baselines
    assert set(rows) == BASELINES
    for name in ("constant_depth", "ramp"):
        assert rows[name].absrel > 0.01 and rows[name].ate_m is None
    for name in ("straight_line", "constant_velocity", "static"):
        assert rows[name].ate_m > 0.01 and rows[name].absrel is None and rows[name].fov_error_deg is None
    assert rows["static"].rpe_rot_deg == pytest.approx(evaluation.final.gt_rot_deg)


def test_summary_takes_the_best_trivial_baseline_of_each_sequence() -> None:
    def evaluation(ours: float | None, line: float, velocity: float) -> Evaluation:
        rows = {name: Metrics() for name in BASELINES}
        rows["straight_line"], rows["constant_velocity"] = (Metrics(ate_over_path=v) for v in (line, velocity))
        row = Metrics(ate_over_path=ours)
        return Evaluation("x", 1, 5, 5, row, row, row, row, rows)

    evaluations = [evaluation(0.1, 0.3, 0.4), evaluation(0.2, 0.9, 0.5), evaluation(None, 1, 1)]
    summary = summarise(evaluations, "ate_over_path")
    assert summary is not None
    assert (summary.sequences, summary.final, summary.best_trivial) == (2, pytest.approx(0.15), pytest.approx(0.4))
    assert summarise(evaluations, "absrel") is None
    assert summary_lines(evaluations) == [
        "mean ATE/path (sequences: 2): ours 0.1500, best trivial baseline 0.4000 (0.38x)"
    ]


def test_the_json_file_has_the_promised_form(
    sequence: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "figures.json"
    evaluate_all(KnowingEngine(sequence), [sequence], ONLY_FRAMES, path)
    content = json.loads(path.read_text(encoding="utf-8"))
    assert set(content) == {"weights_sha256", "sequences"}
    assert content["weights_sha256"] == SHA256
    figures = content["sequences"]["room"]
    promised = {"frames", "path_m", "ate_m", "ate_over_path", "rpe_trans_m", "rpe_rot_deg", "gt_rot_deg"}
    promised |= {"absrel", "delta1", "fov_error_deg"}
    assert promised | {"baselines"} <= set(figures)
    assert all(promised <= set(figures[name]) for name in ("network", "causal", "online_final"))
    assert all(promised <= set(row) for row in figures["baselines"].values())
    assert [p.name for p in tmp_path.iterdir() if p.suffix == ".part"] == []
    printed = capsys.readouterr().out
    for text in (
        "room: 9 frames, stride 1",
        "ours",
        "constant velocity",
        "straight line",
        "mean ATE/path (sequences: 1)",
    ):
        assert text in printed


def test_a_prediction_that_is_not_a_number_is_null_in_the_file(sequence: Scene, tmp_path: Path) -> None:
    engine = KnowingEngine(sequence, scale=float("nan"))
    evaluate_all(engine, [sequence], ONLY_FRAMES, tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))["sequences"]["room"]
    assert (figures["ate_m"], figures["absrel"]) == (None, None)


def test_what_was_finished_is_on_disk_when_a_later_sequence_breaks(tmp_path: Path) -> None:
    good, bad = write_sequence(tmp_path / "good"), write_sequence(tmp_path / "bad")
    (bad.path / "rgb" / "000004.jpg").write_bytes(b"not an image")
    path = tmp_path / "figures.json"
    with pytest.raises(InputError, match=r"000004\.jpg"):
        evaluate_all(KnowingEngine(good), [good, bad], ONLY_FRAMES, path)
    assert list(json.loads(path.read_text(encoding="utf-8"))["sequences"]) == ["good"]


def test_run_loads_one_engine_with_its_options_for_all_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scenes = [write_sequence(tmp_path / name / "walk", frames) for name, frames in (("a", 5), ("b", 7))]
    folders = [scene.path for scene in scenes]
    engine = KnowingEngine(scenes[0])
    asked: list[tuple[Any, ...]] = []

    class Network:
        def engine(self, attention: str, cache: str) -> KnowingEngine:
            assert (attention, cache) == ("sdpa", "fp8")
            return engine

    def load_model(*options: Any) -> Network:
        asked.append(options)
        return Network()

    module = types.ModuleType("stream_recon.app.engine.engine")
    module.load_model = load_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "stream_recon.app.engine.engine", module)
    weights, path = tmp_path / "w.safetensors", tmp_path / "out.json"
    model = ModelChoice("lingbot-map", weights, "cpu", "sdpa", "4", "fp8")
    assert evaluate_folders(folders, RunOptions(FrameChoice(2, max_frames=3), model), path) == 0
    ((preset, *rest),) = asked
    assert (preset.stream.keyframes, preset.stream.keyframe_interval) == ("interval", 4)
    assert rest == [weights, "cpu", "sdpa", "fp8", None, "auto"]
    assert engine.resets == 3
    assert engine.seen == [0, 2, 4] * 2
    named = json.loads(path.read_text(encoding="utf-8"))["sequences"]
    assert list(named) == [str(folder) for folder in folders], "two folders of one name are told apart"
    assert "walk" in capsys.readouterr().out


def test_bad_input_is_found_before_the_engine_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stream_recon.app.engine.engine", None)  # importing it would fail
    folder = write_sequence(tmp_path / "room", 4).path
    with pytest.raises(InputError, match="looked for"):
        evaluate_folders([folder, tmp_path], RunOptions())
    with pytest.raises(ConfigError, match="stride"):
        evaluate_folders([folder], RunOptions(FrameChoice(stride=0)))
    with pytest.raises(ConfigError, match="keyframes"):
        evaluate_folders([folder], RunOptions(model=ModelChoice(keyframes="none")))
    for path in (tmp_path / "nowhere" / "out.json", tmp_path):
        with pytest.raises(OutputError, match="existing folder"):
            evaluate_folders([folder], RunOptions(), path)


SEQUENCES = Path(__file__).parents[3].parent / "shared" / "eval"


@pytest.mark.slow
@pytest.mark.skipif(not SEQUENCES.is_dir(), reason="real sequences are not here")
def test_the_truth_of_real_sequences_agrees_with_itself() -> None:
    folders = sorted(path for path in SEQUENCES.iterdir() if path.is_dir())
    for folder in folders:
        sequence = Scene(folder.name, "sequence", folder, None)
        ours = evaluate_scene(
            KnowingEngine(sequence, scale=0.1), sequence, replace(ONLY_FRAMES, frames=FrameChoice(9, max_frames=5))
        ).final
        assert ours.ate_m == pytest.approx(0, abs=1e-9 * ours.path_m), folder.name
        assert ours.rpe_rot_deg == pytest.approx(0, abs=1e-9), folder.name
        assert ours.fov_error_deg == 0, folder.name
