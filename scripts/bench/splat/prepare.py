"""Models of a video to train splats on: by our exports, and by COLMAP's own structure from motion (pycolmap).

The focal length is unknown to all. Structure from motion gets the very images of our refined export, and is given its
best chance: every image is matched with every other, and pixels are known to be square. Splats of all models are
trained and measured on these images alone: those of a lens of its own would be sampled again, and what is half as sharp
is easier to explain (by 1 dB and more). Times are of processors, all cores together, from the video to the model.
"""

import multiprocessing
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import cv2
import numpy as np
import pycolmap

from bench.splat.product import MODEL, save_training_scene
from bench.splat.scene import HELD_OUT_EVERY, Scene
from stream_recon.app.core.transforms import invert_pose
from stream_recon.app.result.folder import read_result
from stream_recon.app.splat.scene import SceneOptions, scene_of

DENSE = 100_000
QUALITY = 95
IMAGES = "images"
"""Beside the models, which share it."""


def prepare(video: Path, out: Path, every: int) -> None:
    """Write the models of every ``every``-th frame of a video under ``out/NAME/``.

    ``refined``: our export; ``refined-dense``: with points of depth maps; ``network``: without refinement (its points
    are of depth maps), on images whose lens the refinement has undone; ``trained here``: what the program's own
    trainer starts from; ``sfm``: structure from motion. ``work`` keeps
    their inputs.
    """
    work = out / video.stem / "work"
    work.mkdir(parents=True)
    network, refined = work / "network", work / "refined"
    spent = run("run", str(video), "-o", str(network), "--mapping", "off", "--no-viewer", "--no-mesh")
    shutil.copytree(network, refined)
    spent_refined = spent + run("refine", str(refined), "--no-mesh")
    names: list[str] = []
    for name, result, options, seconds in (
        ("refined", refined, [], spent_refined),
        ("refined-dense", refined, ["--dense", str(DENSE)], spent_refined),
        ("network", network, [], spent),
    ):
        target = work / f"export-{name}"
        form = ["--format", "colmap", "--frames", str(every), "-o", str(target)]
        seconds += run("export", str(result), *form, *options)
        names = sorted(path.name for path in (target / "images").iterdir())
        if name == "refined":
            copy_images(target / "images", names, out / video.stem / IMAGES)
        write_scene(target / "sparse" / "0", out / video.stem / name, names, seconds)
    chosen = SceneOptions(frames=str(every), max_images=len(names), max_side=max(image_size(target / "images")))
    save_training_scene(scene_of(read_result(refined), chosen), out / video.stem / MODEL)
    seconds = core_seconds(structure_from_motion, work / "export-refined" / "images", work / "sfm")
    write_scene(work / "sfm" / "sparse", out / video.stem / "sfm", names, seconds)


def run(word: str, *arguments: str) -> float:
    """Run a command of the program; gives its core seconds."""
    words = list(arguments) if word == "run" else [word, *arguments]
    command = [sys.executable, "-m", "stream_recon", *words]
    before = children_seconds()
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return children_seconds() - before


def core_seconds(function: Callable[..., None], *arguments: object) -> float:
    """Run a function in a separate process; returns its core seconds."""
    before = children_seconds()
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{function.__name__} failed")
    return children_seconds() - before


def children_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


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


def image_size(folder: Path) -> tuple[int, int]:
    """Height and width of a folder's images."""
    image = cv2.imread(str(next(folder.iterdir())))
    assert image is not None
    return image.shape[0], image.shape[1]


def copy_images(images: Path, names: Sequence[str], out: Path) -> None:
    """Those of the images that are there, in fewer bytes."""
    out.mkdir(parents=True)
    for name in names:
        if (images / name).is_file():
            bgr = cv2.imread(str(images / name))
            cv2.imwrite(str(out / name), bgr, (cv2.IMWRITE_JPEG_QUALITY, QUALITY))


def write_scene(model: Path, out: Path, chosen: Sequence[str], seconds: float) -> None:
    """What COLMAP's files say, as the trainer reads it; held out is every eighth of all frames, registered or not."""
    read = pycolmap.Reconstruction(model)
    (camera,) = read.cameras.values()
    if camera.model not in (pycolmap.CameraModelId.PINHOLE, pycolmap.CameraModelId.SIMPLE_PINHOLE):
        raise SystemExit(f"{model} has a camera of model {camera.model}, which is no pinhole")
    registered = sorted((read.images[number] for number in read.reg_image_ids()), key=lambda image: image.name)
    points = [read.points3D[number] for number in read.point3D_ids()]
    out.mkdir(parents=True, exist_ok=True)
    image = cv2.imread(str(out.parent / IMAGES / registered[0].name))
    assert image is not None
    height, width = image.shape[:2]
    K = camera.calibration_matrix()
    # What the refinement has undistorted has a few rows or columns more or less, about the same middle.
    K[:2, 2] += (np.array([width, height]) - (camera.width, camera.height)) / 2
    held_out = set(chosen[::HELD_OUT_EVERY])
    to_camera = np.stack([np.vstack([image.cam_from_world().matrix(), [0, 0, 0, 1]]) for image in registered])
    scene = Scene(
        out,
        f"../{IMAGES}",
        tuple(image.name for image in registered),
        np.array([image.name in held_out for image in registered]),
        invert_pose(to_camera),
        K,
        (width, height),
        np.array([point.xyz for point in points], np.float32),
        np.array([point.color for point in points], np.uint8),
        len(chosen),
        len(held_out),
        seconds,
    )
    scene.save()
    error = read.compute_mean_reprojection_error()
    shown = f"{len(registered)} of {len(chosen)} images, {len(points)} points, {error:.2f} px, {seconds:.0f} core s"
    print(f"{out.parent.name}/{out.name}: {shown}", flush=True)
