"""Command ``demo``: the packaged sample, reconstructed and compared with its exact ground truth."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stream_recon.app.cli import options as shared
from stream_recon.app.cli.console import PlainConsole, at_terminal, reported
from stream_recon.configs.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAMPLE = Path(__file__).resolve().parents[1] / "sample" / "walkthrough.mp4"
"""Rendered video of a walk through a room."""
GROUND_TRUTH = SAMPLE.with_name("walkthrough.truth.npz")
"""Poses of all its frames, intrinsics, and depth of some frames."""


@reported
def demo_command(
    output: Annotated[
        Path | None,
        shared.option("Result folder; default: demo-recon, numbered.", "--output", "-o", panel=shared.OUTPUT),
    ] = None,
    overwrite: shared.Overwrite = False,
    max_frames: shared.MaxFrames = None,
    device: shared.Device = "auto",
    mapping: shared.Mapping = "full",
    viewer: Annotated[bool, shared.option("Serve a live view.", "--viewer/--no-viewer", panel=shared.VIEWER)] = True,
    host: shared.Host = "127.0.0.1",
    port: shared.Port = None,
) -> int:
    """Reconstruct the packaged sample and print its error against ground truth."""
    from stream_recon.app.cli.reconstruct import default_output, run_job
    from stream_recon.app.cli.view import ViewerChoice
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.run.options import RunJob, RunOptions
    from stream_recon.app.sources.frame_choice import FrameChoice

    options = RunOptions(FrameChoice(max_frames=max_frames), ModelChoice(device=device), mapping)
    view = ViewerChoice(host, port, keep_open=at_terminal()) if viewer else None
    folder = output or default_output("demo", overwrite)
    return run_job(RunJob(str(SAMPLE), options, folder, overwrite), view, on_finished=print_errors)


def print_errors(folder: Path) -> None:
    """Print the errors of a result of the sample. Raises InputError for another result, StreamReconError."""
    import numpy as np

    from stream_recon.app.core.types import Intrinsics
    from stream_recon.app.evaluation.metrics import depth_errors, field_of_view_error_deg, pose_errors
    from stream_recon.app.result.folder import read_result

    with np.load(GROUND_TRUTH) as file:
        truth = {name: file[name] for name in file.files}
    results = list(read_result(folder))
    indices = [result.index for result in results]
    if not results or max(indices) >= len(truth["T_world_camera"]):
        raise InputError(f"{folder} is not a result of the sample")
    poses = np.stack([result.T_world_camera for result in results])
    pose = pose_errors(poses, truth["T_world_camera"][indices], np.diff(indices) > 0)
    stride, with_depth = int(truth["depth_stride"]), truth["depth_frames"].tolist()
    pairs = [
        _sampled_depths(r.depth, truth["depth"][with_depth.index(r.index)], stride, r.transform.source_size)
        for r in results
        if r.index in with_depth
    ]
    predicted, known = (np.concatenate(side) for side in zip(*pairs, strict=True))
    depth = depth_errors(predicted, known)
    camera = Intrinsics(*truth["intrinsics"])
    fov = np.mean([field_of_view_error_deg(r.intrinsics, camera, r.transform.source_size) for r in results])
    lines = [
        f"against exact ground truth, {len(results)} frames over {pose.path_m or 0:.2f} m:",
        f"  trajectory    {100 * (pose.ate_m or 0):.1f} cm RMSE after Sim(3), {pose.ate_over_path or 0:.2%} of length",
        f"  rotation      {pose.rpe_rot_deg or 0:.2f} degrees a step (true rotation {pose.gt_rot_deg or 0:.2f})",
        f"  depth         AbsRel {depth.absrel:.3f}, {depth.delta1:.1%} within 25 %",
        f"  field of view error of {fov:.1f} degrees",
    ]
    PlainConsole(soft_wrap=True).print("\n".join(lines))


def _sampled_depths(
    predicted: "NDArray[np.float32]", truth: "NDArray[np.float32]", stride: int, size: tuple[int, int]
) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """Predicted and true depth at the pixels with ground truth, two arrays [N]; ``size`` is that of the source."""
    import numpy as np

    rows, columns = np.indices(truth.shape) * stride
    height, width = predicted.shape
    y = np.minimum((rows + 0.5) / size[1] * height, height - 1).astype(int)
    x = np.minimum((columns + 0.5) / size[0] * width, width - 1).astype(int)
    valid = truth > 0
    return predicted[y, x][valid].astype(np.float64), truth[valid].astype(np.float64)
