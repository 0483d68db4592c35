#!/usr/bin/env python3
"""Register the depth of a 7-Scenes sequence to its colour camera: scripts/data/register_depth.py SEQUENCE TARGET

A Kinect's depth images are of its depth camera. TARGET is a copy of SEQUENCE (rgb/, depth/, poses.txt, intrinsics.txt)
whose depth, poses and intrinsics are those of the colour camera. Images are linked.

Focal lengths of the cameras: 585 and 525 pixels (RGB-D Dataset 7-Scenes, Microsoft Research). Transformation between
them: Kinect calibration of LIRIS (VOIR project), as used in evaluations on this data set (Brachmann and Rother 2021,
doi 10.1109/TPAMI.2021.3070754).
"""

import argparse
import sys
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

DEPTH_FOCAL, COLOUR_FOCAL = 585.0, 525.0
T_COLOUR_DEPTH = np.array(
    [
        [0.99996518012567637, 0.0026765126468950343, -0.0079041012313000904, -0.025558943178152542],
        [-0.0027409311281316700, 0.99996302803027592, -0.0081504520778013286, 0.00010109636268061706],
        [0.0078819942130445332, 0.0081718328771890631, 0.99993554558014031, 0.0020318321729487039],
        [0.0, 0.0, 0.0, 1.0],
    ]
)


def registered(depth: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Depth image [h, w] in mm of the colour camera, from that of the depth camera; 0 where it is unknown.

    Of several points in a pixel the nearest counts. A point covers the pixels that its own pixel covers there.
    """
    height, width = depth.shape
    rows, columns = np.nonzero(depth)
    z = depth[rows, columns].astype(np.float64) / 1000
    centre = np.array([width / 2, height / 2])
    xy = (np.stack([columns, rows], axis=1) + 0.5 - centre) / DEPTH_FOCAL
    local = np.concatenate([xy * z[:, None], z[:, None]], axis=1) @ T_COLOUR_DEPTH[:3, :3].T + T_COLOUR_DEPTH[:3, 3]
    pixel = np.floor(local[:, :2] / local[:, 2:] * COLOUR_FOCAL + centre).astype(np.intp)
    inside = (pixel >= 0).all(axis=1) & (pixel < (width, height)).all(axis=1) & (local[:, 2] > 0)
    nearest = np.full(height * width, np.inf)
    np.minimum.at(nearest, pixel[inside] @ (1, width), local[inside, 2])
    nearest[~np.isfinite(nearest)] = 0
    return np.asarray(np.rint(1000 * nearest.reshape(height, width)).clip(0, 65535), np.uint16)


def write(sequence: Path, target: Path) -> int:
    """Write the registered sequence; returns the number of depth images. Raises OSError."""
    (target / "depth").mkdir(parents=True)
    (target / "rgb").symlink_to((sequence / "rgb").resolve())
    poses = np.loadtxt(sequence / "poses.txt")
    T = poses[:, 1:].reshape(-1, 4, 4) @ np.linalg.inv(T_COLOUR_DEPTH)
    lines = (
        f"{int(index)} " + " ".join(f"{v:.9g}" for v in pose.ravel())
        for index, pose in zip(poses[:, 0], T, strict=True)
    )
    (target / "poses.txt").write_text("\n".join(lines) + "\n")
    *_, cx, cy, width, height = np.loadtxt(sequence / "intrinsics.txt")
    text = f"{COLOUR_FOCAL:g} {COLOUR_FOCAL:g} {cx:g} {cy:g} {width:g} {height:g}\n"
    (target / "intrinsics.txt").write_text(text)
    files = sorted((sequence / "depth").glob("*.png"))
    for file in files:
        depth = cv2.imread(str(file), cv2.IMREAD_UNCHANGED)
        cv2.imwrite(str(target / "depth" / file.name), registered(np.asarray(depth, np.uint16)))
    return len(files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sequence", type=Path, metavar="SEQUENCE")
    parser.add_argument("target", type=Path, metavar="TARGET")
    options = parser.parse_args()
    try:
        print(f"{options.target}: {write(options.sequence, options.target)} depth images of the colour camera")
    except OSError as error:
        print(f"register_depth: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
