"""Models of a video to train splats on: by our export, and by COLMAP's own structure from motion (pycolmap).

The focal length is unknown to both. Structure from motion gets the very images of our refined export, and is given its
best chance: every image is matched with every other, and pixels are known to be square. Times are of processors, all
cores together, from the video to the model.
"""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import pycolmap

from bench.command import children_seconds, run_program
from bench.splat.models import HELD_OUT_EVERY, IMAGES, OURS, OWN, QUALITY, SFM, Model, save_training_scene
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.result.folder import read_result
from stream_recon.app.splat.scene import SceneOptions, scene_of

DENSE = 100_000


def prepare(video: Path, out: Path, every: int) -> None:
    """Write the models of every ``every``-th frame of a video under ``out/NAME/``; ``work`` keeps their inputs."""
    target = out / video.stem
    result, export, images = target / "work" / "result", target / "work" / "export", target / IMAGES
    target.mkdir(parents=True)
    cpu_s = run_program(video, "--no-viewer", "--no-mesh", out=result).cpu_seconds
    words = ["export", result, "--format", "colmap", "--frames", every, "--dense", DENSE]
    cpu_s += run_program(*words, out=export).cpu_seconds
    names = sorted(path.name for path in (export / "images").iterdir())
    images.mkdir()
    side = 0
    for name in names:
        bgr = cv2.imread(str(export / "images" / name))
        assert bgr is not None
        cv2.imwrite(str(images / name), bgr, (cv2.IMWRITE_JPEG_QUALITY, QUALITY))
        side = max(bgr.shape)
    model_of(export / "sparse" / "0", names, cpu_s).save(target / OURS)
    chosen = SceneOptions(frames=str(every), max_images=len(names), max_side=side)
    save_training_scene(scene_of(read_result(result), chosen), target / OWN)
    before = children_seconds()
    work = target / "work" / "sfm"
    process = multiprocessing.get_context("spawn").Process(target=structure_from_motion, args=(export / "images", work))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit("structure from motion failed")
    model_of(work / "sparse", names, children_seconds() - before).save(target / SFM)


def structure_from_motion(images: Path, out: Path) -> None:
    """COLMAP's usual way, with its own settings; the largest model in ``out/sparse``."""
    out.mkdir()
    database = out / "database.db"
    pycolmap.extract_features(
        database,
        images,
        camera_mode=pycolmap.CameraMode.SINGLE,
        reader_options=pycolmap.ImageReaderOptions(camera_model="SIMPLE_PINHOLE"),
    )
    pycolmap.match_exhaustive(database)
    models = pycolmap.incremental_mapping(database, images, out / "models")
    if not models:
        raise SystemExit("structure from motion found no model")
    best = max(models, key=lambda number: models[number].num_reg_images())
    (out / "models" / str(best)).rename(out / "sparse")


def model_of(folder: Path, chosen: Sequence[str], seconds: float) -> Model:
    """What COLMAP's files say; held out is every eighth of all frames, registered or not."""
    read = pycolmap.Reconstruction(folder)
    (camera,) = read.cameras.values()
    registered = sorted((read.images[number] for number in read.reg_image_ids()), key=lambda image: image.name)
    points = [read.points3D[number] for number in read.point3D_ids()]
    held_out = set(chosen[::HELD_OUT_EVERY])
    error = read.compute_mean_reprojection_error()
    shown = f"{len(registered)} of {len(chosen)} images, {len(points)} points, {error:.2f} px, {seconds:.0f} core s"
    print(f"{folder}: {shown}", flush=True)
    return Model(
        np.array([image.name for image in registered]),
        np.array([image.name in held_out for image in registered]),
        invert_pose(np.stack([np.vstack([i.cam_from_world().matrix(), [0, 0, 0, 1]]) for i in registered])),
        camera.calibration_matrix(),
        np.array([point.xyz for point in points], np.float32),
        np.array([point.color for point in points], np.uint8),
        np.array([len(chosen), len(held_out)]),
        np.array(seconds),
    )
