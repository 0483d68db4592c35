#!/usr/bin/env python3
"""Renders the sample that ships with the package: a walk through one furnished room, and its exact truth.

    scripts/data/make_sample.py [--output app/sample] [--seed N] [--preview]

The truth (.npz) holds T_world_camera float64 [N, 4, 4] (OpenCV axes, metres), intrinsics float64 [4] (fx, fy, cx,
cy in pixels of the video), fps, and depth float16 [K, h, w] in metres of the frames `depth_frames`, of every
`depth_stride`-th pixel of every `depth_stride`-th row from the first on. Textures are procedural alone.
"""

import argparse
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from training.synthetic import SceneGenerator
from training.synthetic.cameras import Path as CameraPath
from training.synthetic.layout_room import room_around

WIDTH, HEIGHT, FRAMES, FPS = 384, 288, 120, 20
FIELD_OF_VIEW = 68.0  # degrees, horizontal
DEPTH_EVERY, DEPTH_STRIDE = 10, 3
SEED = 30
CHUNK = 10  # frames rendered at once
CRF = 23


def walk() -> CameraPath:
    """A few steps along a wide arc, looking about, hand-held."""
    time = torch.arange(FRAMES, dtype=torch.float32) / FRAMES  # 0..1
    seconds = time * FRAMES / FPS
    turn = 1.5 * (time - 0.5) + 0.25 * torch.sin(2 * math.pi * time)
    heading = 0.9 * (time - 0.5) - 0.5
    pace = 0.024 * (1 + 0.15 * torch.sin(2 * math.pi * 0.9 * seconds))  # metres a frame
    xy = torch.stack([pace * heading.cos(), pace * heading.sin()], -1).cumsum(0)
    bob = 0.016 * torch.sin(2 * math.pi * 1.7 * seconds) + 0.12 * torch.sin(2.5 * math.pi * time)
    sway = 0.012 * torch.sin(2 * math.pi * 0.85 * seconds + 1.0)
    position = torch.stack([xy[:, 0] - sway * heading.sin(), xy[:, 1] + sway * heading.cos(), bob], -1)
    shake = [torch.sin(2 * math.pi * f * seconds + p) for f, p in ((1.3, 0.2), (1.9, 1.1), (0.8, 2.0), (3.1, 0.5))]
    yaw = turn + 0.006 * shake[0] + 0.002 * shake[3]
    pitch = -0.17 + 0.06 * torch.sin(2 * math.pi * 1.2 * time) + 0.006 * shake[1] + 0.002 * shake[3]
    roll = 0.008 * shake[2] + 0.003 * shake[1]
    step = torch.full((1,), 0.024)
    return CameraPath(position[None], yaw[None], pitch[None], roll[None], step)


def render(
    seed: int, width: int, height: int, keep: slice
) -> tuple[NDArray[np.uint8], torch.Tensor, torch.Tensor, float]:
    """Frames uint8 [N, H, W, 3], depth [N, H, W], poses [N, 4, 4], and the focal length in pixels."""
    generator = SceneGenerator("cpu", seed, degrade=False)
    world, poses = generator.build([room_around(generator.draws, generator.catalogue, walk())])
    poses = poses[:, keep]
    focal = 0.5 * width / math.tan(math.radians(FIELD_OF_VIEW) / 2)
    images, depths = [], []
    for part in poses.split(CHUNK, dim=1):
        image, depth = generator.renderer.render(world, part, torch.full((1, 2), focal), height, width)
        images.append(image[0].clamp(0, 1))
        depths.append(depth[0])
    image = torch.cat(images)
    # Bring the room to an ordinary exposure, with a little sensor noise.
    image = (image * (0.45 / image.mean())).clamp(0, 1) ** 0.9
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(seed)) * 0.006
    frames = ((image + noise).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy()
    return frames, torch.cat(depths), poses[0], focal


def encode(frames: NDArray[np.uint8], path: Path) -> None:
    """Writes H.264 with the ffmpeg program."""
    _, height, width, _ = frames.shape
    command = ["ffmpeg", "-y", "-loglevel", "error", "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    command += ["-r", str(FPS), "-i", "-", "-c:v", "libx264", "-preset", "veryslow", "-crf", str(CRF)]
    command += ["-pix_fmt", "yuv420p", "-movflags", "+faststart", str(path)]
    subprocess.run(command, input=frames.tobytes(), check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[2] / "app" / "sample")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--preview", type=Path, help="only write a small picture of some frames there")
    options = parser.parse_args()
    if options.preview:
        import cv2

        frames, _, _, _ = render(options.seed, WIDTH // 2, HEIGHT // 2, slice(0, None, 24))
        cv2.imwrite(str(options.preview), np.concatenate(list(frames), 1)[..., ::-1])
        return
    frames, depth, poses, focal = render(options.seed, WIDTH, HEIGHT, slice(None))
    options.output.mkdir(parents=True, exist_ok=True)
    encode(frames, options.output / "walkthrough.mp4")
    np.savez_compressed(
        options.output / "walkthrough.truth.npz",
        T_world_camera=poses.double().numpy(),
        intrinsics=np.array([focal, focal, WIDTH / 2, HEIGHT / 2]),
        fps=np.array(float(FPS)),
        depth=depth[::DEPTH_EVERY, ::DEPTH_STRIDE, ::DEPTH_STRIDE].half().numpy(),
        depth_frames=np.arange(0, FRAMES, DEPTH_EVERY),
        depth_stride=np.array(DEPTH_STRIDE),
    )
    for path in sorted(options.output.iterdir()):
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
