"""What a splat is trained on: images, their pinhole camera and poses, and points to begin with."""

import math
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

MODEL_NAME = "model.npz"
HELD_OUT_EVERY = 8
"""Of the frames that were chosen, in order: the first, the ninth, ... are not trained on."""


@dataclass(frozen=True)
class Scene:
    """One camera, n registered images, m points, in one world; camera axes x right, y down, z forward."""

    folder: Path
    images_folder: str
    """Of the images, from ``folder``; several models may share one."""
    names: tuple[str, ...]
    held_out: NDArray[np.bool_]  # [n]
    T_world_camera: NDArray[np.float64]  # [n, 4, 4]
    K: NDArray[np.float64]  # [3, 3], pixels; pixel (0, 0) covers [0, 1) x [0, 1)
    size: tuple[int, int]
    points: NDArray[np.float32]  # [m, 3]
    colours: NDArray[np.uint8]  # [m, 3]
    chosen: int
    """How many frames there were to register."""
    chosen_held_out: int
    """How many of these are to be held out."""
    seconds: float
    """From the images to the model."""

    def save(self) -> None:
        np.savez_compressed(
            self.folder / MODEL_NAME,
            images_folder=self.images_folder,
            names=np.array(self.names),
            held_out=self.held_out,
            T_world_camera=self.T_world_camera,
            K=self.K,
            size=np.array(self.size),
            points=self.points,
            colours=self.colours,
            counts=np.array([self.chosen, self.chosen_held_out]),
            seconds=self.seconds,
        )

    def images(self) -> NDArray[np.uint8]:
        """All images, RGB [n, h, w, 3]. Raises SystemExit where one is missing or of another size."""
        stack = np.empty((len(self.names), self.size[1], self.size[0], 3), np.uint8)
        for image, name in zip(stack, self.names, strict=True):
            bgr = cv2.imread(str(self.folder / self.images_folder / name))
            if bgr is None or bgr.shape != image.shape:
                raise SystemExit(
                    f"{self.folder / self.images_folder / name} is missing, or not {self.size[0]}x{self.size[1]}"
                )
            image[:] = bgr[..., ::-1]
        return stack


def load_scene(folder: Path) -> Scene:
    """What `Scene.save` wrote there."""
    with np.load(folder / MODEL_NAME) as model:
        return Scene(
            folder,
            str(model["images_folder"]),
            tuple(str(name) for name in model["names"]),
            model["held_out"],
            model["T_world_camera"],
            model["K"],
            (int(model["size"][0]), int(model["size"][1])),
            model["points"],
            model["colours"],
            int(model["counts"][0]),
            int(model["counts"][1]),
            float(model["seconds"]),
        )


@dataclass(frozen=True)
class Figures:
    """Of one training, over the images that were held out and registered."""

    psnr: float
    ssim: float
    psnr_of: dict[str, float]
    gaussians: int
    seconds: float
    memory_gb: float = math.nan
    """Peak memory of the GPU."""
    floaters: float = math.nan
    """Mean opacity in free space, see `bench.splat.product.floaters`."""
