"""Known poses on the sample: noisy ones that refinement corrects, and depth on true ones that stay."""

import shutil
import tempfile
from argparse import ArgumentParser, Namespace
from pathlib import Path

import numpy as np

from bench import SAMPLE
from bench.command import run_program
from bench.table import row
from stream_recon.app.core import so3
from stream_recon.app.core.transforms import FloatArray, align_poses, quaternion_xyzw, rotation_angle_deg
from stream_recon.app.evaluation.metrics import pose_errors
from stream_recon.app.export.source_images import source_of
from stream_recon.app.result.folder import ResultFolder, read_result, result_of
from stream_recon.app.run.options import RunOptions
from stream_recon.app.stages.chain import RunPlan, run_stages
from stream_recon.app.stages.stage import StageContext

NOISE_M, NOISE_DEG = 0.02, 0.5
"""Standard deviations of each coordinate of a position, and of a turn about each axis."""


def noisy(truth: FloatArray, seed: int) -> FloatArray:
    """True poses [N, 4, 4] with errors of their own."""
    random, T = np.random.default_rng(seed), truth.copy()
    T[:, :3, 3] += random.normal(0, NOISE_M, (len(T), 3))
    T[:, :3, :3] = T[:, :3, :3] @ so3.exp(np.radians(random.normal(0, NOISE_DEG, (len(T), 3))))
    return T


def errors(T: FloatArray, truth: FloatArray) -> tuple[float, float]:
    """RMS errors in centimetres after alignment, and in degrees."""
    ate = pose_errors(T, truth, np.ones(len(truth) - 1, bool)).ate_m or 0.0
    turned = align_poses(T, truth, 1.0).rotation @ T[:, :3, :3]
    turns = rotation_angle_deg(np.swapaxes(turned, 1, 2) @ truth[:, :3, :3])
    return 100 * ate, float(np.sqrt(np.mean(np.square(turns))))


def refined(result: Path, poses: str, out: Path) -> ResultFolder:
    """A copy of a result, refined with known poses."""
    shutil.copytree(result, out)
    plan = RunPlan.of(RunOptions(poses=poses or None, mesh=False, dense_side=None), again=True)
    run_stages(plan, StageContext(out, source_of(read_result(out)))).check()
    return read_result(out)


def depth_error(result: ResultFolder) -> float:
    """AbsRel of the depth of all frames with true depth, with one scale."""
    pairs = []
    with np.load(SAMPLE.with_suffix(".truth.npz")) as truth:
        for index, true in zip(truth["depth_frames"].tolist(), truth["depth"].astype(np.float64), strict=True):
            depth = result_of(result.folder, result.cameras[index]).depth
            rows, columns = (
                ((np.arange(count) + 0.5) / count * size).astype(int)
                for count, size in zip(true.shape, depth.shape, strict=True)
            )
            pairs.append(np.stack([depth[np.ix_(rows, columns)].astype(np.float64), true])[:, true > 0])
    ours, true = np.concatenate(pairs, axis=1)
    return float(np.mean(np.abs(ours * np.median(true / ours) / true - 1)))


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=5, help="draws of the noise")


def run(options: Namespace) -> None:
    """Print errors of known and of refined poses, and of depth."""
    with np.load(SAMPLE.with_suffix(".truth.npz")) as content:
        truth, fps = content["T_world_camera"].astype(np.float64), float(content["fps"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = folder / "own"
        run_program(SAMPLE, "--no-mesh", "--dense", "off", "--no-viewer", out=own)

        def written(poses: FloatArray) -> Path:
            times = np.arange(len(poses)) / fps
            np.savetxt(
                folder / "poses.txt", np.column_stack([times, poses[:, :3, 3], quaternion_xyzw(poses[:, :3, :3])])
            )
            return folder / "poses.txt"

        def shown(T: FloatArray) -> str:
            return "{:.2f} cm, {:.3f} degrees".format(*errors(T, truth))

        def poses_of(result: ResultFolder) -> FloatArray:
            return np.array([camera.T_world_camera for camera in result.cameras])

        row("refined without known poses", shown(poses_of(read_result(own))))
        for seed in range(options.seeds):
            known = noisy(truth, seed)
            found = poses_of(refined(own, str(written(known)), folder / f"prior{seed}"))
            row(f"known poses, noise {seed}; refined with them", f"{shown(known)}; {shown(found)}")
        fixed = refined(own, f"fixed:{written(truth)}", folder / "fixed")
        row("fixed true poses", shown(poses_of(fixed)))
        row("AbsRel of depth, own poses; true ones", f"{depth_error(read_result(own)):.4f}; {depth_error(fixed):.4f}")
