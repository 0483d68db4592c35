"""Export of the trajectory in the formats of evaluation tools: TUM RGB-D, KITTI odometry, EuRoC MAV."""

from pathlib import Path

from stream_recon.app.core.transforms import quaternion_xyzw
from stream_recon.app.export.job import ExportJob, ExportReport

TUM, KITTI, KITTI_TIMES, EUROC = "trajectory_tum.txt", "trajectory_kitti.txt", "times_kitti.txt", "trajectory_euroc.csv"
EUROC_HEAD = "#timestamp [ns],p_RS_R_x [m],p_RS_R_y [m],p_RS_R_z [m],q_RS_w [],q_RS_x [],q_RS_y [],q_RS_z []\n"


def write_trajectory(job: ExportJob, folder: Path) -> ExportReport:
    """Write camera-to-world poses in all three formats. Raises StreamReconError, or OSError for system errors."""
    cameras = job.cameras("all")
    with (
        (folder / TUM).open("w") as tum,
        (folder / KITTI).open("w") as kitti,
        (folder / KITTI_TIMES).open("w") as times,
        (folder / EUROC).open("w") as euroc,
    ):
        tum.write("# timestamp tx ty tz qx qy qz qw\n")
        euroc.write(EUROC_HEAD)
        for done, camera in enumerate(cameras, start=1):
            T = camera.T_world_camera
            tum.write(camera.to_tum())
            kitti.write(" ".join(f"{value:.9g}" for value in T[:3].ravel()) + "\n")
            times.write(f"{camera.timestamp:.6f}\n")
            qx, qy, qz, qw = quaternion_xyzw(T[:3, :3])
            numbers = ",".join(f"{value:.9g}" for value in (*T[:3, 3], qw, qx, qy, qz))
            euroc.write(f"{round(camera.timestamp * 1e9)},{numbers}\n")
            job.progress(done, len(cameras))
    return ExportReport(
        f"{len(cameras)} poses, camera to world.",
        [
            "Camera: x right, y down, z forward.",
            f"{TUM}: time in seconds of the source, position, quaternion x y z w.",
            f"{KITTI}: the upper three rows of the 4x4 pose, row by row; {KITTI_TIMES}: seconds of the source.",
            f"{EUROC}: nanoseconds of the source, position, quaternion w x y z. The header has [m], as the format "
            "requires; the unit is the one above.",
        ],
    )
