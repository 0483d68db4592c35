"""What a splat is trained on: a model of images, poses and points; and the scene of the program's own trainer."""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from stream_recon.app.splat.scene import TrainingScene

OURS, SFM, OWN = "refined", "sfm", "trained here"
"""Models: our export with dense points, structure from motion, and what the program's trainer starts from."""
MODEL_NAME, SCENE_NAME = "model.npz", "scene.npz"
IMAGES = "images"
"""Beside the models, which share it."""
QUALITY = 95
HELD_OUT_EVERY = 8
"""Of the frames that were chosen, in order: the first, the ninth, ... are not trained on."""


@dataclass(frozen=True)
class Model:
    """One camera, n registered images, m points, in one world; camera axes x right, y down, z forward."""

    names: NDArray[np.str_]  # [n]
    held_out: NDArray[np.bool_]  # [n]
    T_world_camera: NDArray[np.float64]  # [n, 4, 4]
    K: NDArray[np.float64]  # [3, 3], pixels; pixel (0, 0) covers [0, 1) x [0, 1)
    points: NDArray[np.float32]  # [m, 3]
    colours: NDArray[np.uint8]  # [m, 3]
    chosen: NDArray[np.intp]
    """How many frames there were to register, and how many of these to hold out."""
    seconds: NDArray[np.float64]
    """Of processors, from the video to the model."""

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / MODEL_NAME, **{field.name: getattr(self, field.name) for field in fields(self)})

    def images(self, folder: Path) -> NDArray[np.uint8]:
        """All images, RGB [n, h, w, 3]."""
        read = [cv2.imread(str(folder / str(name))) for name in self.names]
        return np.stack([np.asarray(bgr, np.uint8)[..., ::-1] for bgr in read if bgr is not None])


def load_model(folder: Path) -> Model:
    """What `Model.save` wrote there."""
    with np.load(folder / MODEL_NAME) as stored:
        return Model(**dict(stored))


def save_training_scene(scene: TrainingScene, folder: Path) -> None:
    """Write a scene, with its images as JPEG files."""
    folder.mkdir(parents=True, exist_ok=True)
    jpegs = [cv2.imencode(".jpg", image[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, QUALITY))[1] for image in scene.images]
    arrays = {name: value for name, value in vars(scene).items() if name != "images" and value is not None}
    ends = np.cumsum([len(jpeg.ravel()) for jpeg in jpegs])
    np.savez_compressed(
        folder / SCENE_NAME, jpegs=np.concatenate([jpeg.ravel() for jpeg in jpegs]), ends=ends, **arrays
    )


def load_training_scene(folder: Path) -> TrainingScene:
    """What `save_training_scene` wrote there."""
    with np.load(folder / SCENE_NAME) as stored:
        arrays: dict[str, Any] = dict(stored)
    parts = np.split(arrays.pop("jpegs"), arrays.pop("ends")[:-1].tolist())
    images = [np.asarray(cv2.imdecode(part, cv2.IMREAD_COLOR))[..., ::-1] for part in parts]
    return TrainingScene(images=np.stack(images), **{**arrays, "every": int(arrays["every"])})


@dataclass(frozen=True)
class Figures:
    """Of one training, over the images that were held out and registered."""

    psnr_of: dict[str, float]
    ssim: float
    gaussians: int
    seconds: float
    floaters: float = math.nan
    """Mean opacity in free space, see `bench.splat.train.floaters`."""

    def off_path(self, floaters: float) -> "Figures":
        return replace(self, floaters=floaters)

    @property
    def psnr(self) -> float:
        return float(np.mean(list(self.psnr_of.values()))) if self.psnr_of else math.nan
