#!/usr/bin/env python3
"""Statistics of rendered and of real images, and the accuracy of a classifier that separates them.

scripts/bench/compare_images.py FOLDER... [--clips 96] [--tiles .tiles/tiles.npz] [--plain 0.55]

Each folder is a sequence with images in rgb/. Both kinds are compared as the network gets them. For each statistic
the 10 %, 50 % and 90 % quantiles are printed, of the real images (all sequences weigh the same) and of the rendered
ones. The classifier is Fisher's linear discriminant with shrinkage; its accuracy, 0.5 at random,
is the mean over the sequences, each judged without having been learnt from. Real images are looked at, not kept.
"""

import argparse
import importlib.util
import sys
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

HEIGHT, WIDTH = 168, 224
BLOCK = 8
BANDS = (0.02, 0.04, 0.08, 0.16, 0.25, 0.35, 0.5)  # cycles per pixel
SHRINKAGE = 0.05
EACH = 24  # images of a sequence
SECOND = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32) / 6

Image = NDArray[np.uint8]


def statistics(image: Image, following: Image) -> dict[str, float]:
    """Figures of an RGB image, and of the one after it."""
    x = image.astype(np.float32) / 255
    grey = cv2.cvtColor(x, cv2.COLOR_RGB2GRAY)
    after = cv2.cvtColor(following.astype(np.float32) / 255, cv2.COLOR_RGB2GRAY)
    colour = x.max(2) - x.min(2)
    across, down = np.diff(grey, axis=1)[:-1], np.diff(grey, axis=0)[:, :-1]
    slope = np.hypot(across, down)
    # What is left of a block once planes are taken out of it: noise where there is nothing to see.
    rough = cv2.filter2D(grey, -1, SECOND)
    residue, texture = blocks(rough).std(1), blocks(grey).std(1)
    ycc = cv2.cvtColor(x, cv2.COLOR_RGB2YCrCb)
    hue = [ycc[..., channel] for channel in (1, 2)]
    hues = [blocks(cv2.filter2D(plane, -1, SECOND)).std(1) for plane in hue]
    hue_slope = sum(np.abs(np.diff(plane, axis=1)).mean() + np.abs(np.diff(plane, axis=0)).mean() for plane in hue)
    small = np.ones((3, 3), np.uint8)
    light, dark = grey > np.quantile(grey, 0.6), grey < np.quantile(grey, 0.3)
    values = {
        "brightness": grey.mean(),
        "contrast": grey.std(),
        "overexposed": (grey > 0.97).mean(),
        "black": (grey < 0.03).mean(),
        "colour": colour.mean(),
        "strongest colour": np.quantile(colour, 0.95),
        "gradient": slope.mean(),
        "median gradient": np.median(slope),
        "sharpest gradient": np.quantile(slope, 0.99),
        "log kurtosis": np.log((across**4).mean() / max((across**2).mean() ** 2, 1e-12) + 1e-6),
        "noise": np.quantile(residue, 0.1),
        "fine detail": np.median(residue),
        "textured share": (texture > 0.03).mean(),
        "flat share": (texture < 0.008).mean(),
        "chroma noise": np.quantile(np.maximum(*hues), 0.1),
        "chroma edges": hue_slope / (slope.mean() + 0.002),
        "thin and light": (grey - cv2.morphologyEx(grey, cv2.MORPH_OPEN, small)).mean(),
        "thin and dark": (cv2.morphologyEx(grey, cv2.MORPH_CLOSE, small) - grey).mean(),
        "detail in shadow": np.log((np.abs(rough[dark]).mean() + 1e-3) / (np.abs(rough[light]).mean() + 1e-3)),
        "dark corners": np.log((corners(grey) + 0.05) / (middle(grey) + 0.05)),
        "exposure change": abs(np.log((after.mean() + 0.01) / (grey.mean() + 0.01))),
    }
    return {name: float(value) for name, value in values.items()} | falls(grey)


def corners(grey: NDArray[np.float32]) -> float:
    rows, columns = (n // 5 for n in grey.shape)
    return float(
        np.mean(
            [part.mean() for half in (grey[:rows], grey[-rows:]) for part in (half[:, :columns], half[:, -columns:])]
        )
    )


def middle(grey: NDArray[np.float32]) -> float:
    rows, columns = (n // 3 for n in grey.shape)
    return float(grey[rows:-rows, columns:-columns].mean())


def blocks(plane: NDArray[np.float32]) -> NDArray[np.float32]:
    """[H, W] -> [number of complete blocks, pixels per block]."""
    rows, columns = (n // BLOCK for n in plane.shape)
    cut = plane[: rows * BLOCK, : columns * BLOCK].reshape(rows, BLOCK, columns, BLOCK)
    return cut.transpose(0, 2, 1, 3).reshape(-1, BLOCK * BLOCK)


def falls(grey: NDArray[np.float32]) -> dict[str, float]:
    """By how many powers of ten the spectrum falls from band to band."""
    side = min(grey.shape) // 2 * 2
    top, left = (grey.shape[0] - side) // 2, (grey.shape[1] - side) // 2
    part = grey[top : top + side, left : left + side]
    window = np.hanning(side)
    power = np.abs(np.fft.fftshift(np.fft.fft2((part - part.mean()) * window[:, None] * window))) ** 2
    y, x = np.mgrid[:side, :side] - side // 2
    radius = np.hypot(x, y) / side
    levels = [np.log10(power[(radius >= a) & (radius < b)].mean() + 1e-9) for a, b in pairwise(BANDS)]
    return {f"fall at {BANDS[i + 1]:.2f}": float(a - b) for i, (a, b) in enumerate(pairwise(levels))}


def accuracy(real: list[NDArray[np.float64]], rendered: NDArray[np.float64]) -> float:
    """Balanced accuracy; each sequence of ``real`` [n, K] is judged, beside its share of ``rendered`` [N, K], by what
    the others taught."""
    judged = []
    for number, left_out in enumerate(real):
        own = np.arange(len(rendered)) % len(real) == number
        others = np.concatenate([x for i, x in enumerate(real) if i != number])
        taught = rendered[~own]
        both = np.concatenate([others, taught])
        middle, spread = both.mean(0), both.std(0) + 1e-9
        a, b = (others - middle) / spread, (taught - middle) / spread
        scatter = (np.cov(a.T) + np.cov(b.T)) / 2
        normal = np.linalg.solve(scatter + SHRINKAGE * np.eye(len(scatter)), a.mean(0) - b.mean(0))
        threshold = (a.mean(0) + b.mean(0)) @ normal / 2
        found = ((left_out - middle) / spread @ normal > threshold).mean()
        refused = ((rendered[own] - middle) / spread @ normal <= threshold).mean()
        judged.append((found + refused) / 2)
    return float(np.mean(judged))


def real_pairs(folder: Path) -> list[tuple[Image, Image]]:
    """Pairs of neighbours of a sequence, evenly spread, as the network gets them."""
    from stream_recon.app.core.types import Frame
    from stream_recon.app.sources.preprocess import plan_image, prepare
    from stream_recon.configs.schema import load_preset

    preset = load_preset("small")
    paths = sorted(path for path in (folder / "rgb").iterdir() if path.suffix.lower() in {".jpg", ".jpeg", ".png"})
    pairs = []
    for i in np.unique(np.linspace(0, len(paths) - 2, EACH).astype(int)):
        images = []
        for path in paths[i : i + 2]:
            rgb = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB).astype(np.uint8)
            size = (rgb.shape[1], rgb.shape[0])
            transform = plan_image(size, preset.image, preset.network.patch_size)
            images.append(prepare(Frame(0, 0.0, rgb), transform).rgb)
        pairs.append((images[0], images[1]))
    return pairs


def rendered_pairs(options: argparse.Namespace) -> list[tuple[Image, Image]]:
    from training.synthetic import SceneGenerator, SceneShares

    shares = SceneShares(plain=options.plain) if options.plain is not None else SceneShares()
    generator = SceneGenerator("cpu", options.seed, options.tiles, shares=shares)
    pairs = []
    for _ in range(0, options.clips, EACH):
        # Of eight frames two: what two alone would show is the widest motion.
        images = generator.render(EACH, 8, HEIGHT, WIDTH).images[:, 3:5]
        flat = (images * 255).round().to(torch.uint8).permute(0, 1, 3, 4, 2).numpy()
        pairs += [(clip[0], clip[1]) for clip in flat]
    return pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--clips", type=int, default=96, help="rendered clips (96)")
    parser.add_argument("--tiles", type=Path, help="photo tiles for the scenes (npz)")
    parser.add_argument("--plain", type=float, help="share of plain images (the generator's own)")
    parser.add_argument("--seed", type=int, default=9_000_000)
    options = parser.parse_args()
    if len(options.folders) < 2:
        parser.error("two sequences at least: each is judged by what the others teach")
    real = [[statistics(*pair) for pair in real_pairs(folder)] for folder in options.folders]
    rendered = [statistics(*pair) for pair in rendered_pairs(options)]
    names = list(rendered[0])
    sequences = [np.array([[row[name] for name in names] for row in rows]) for rows in real]
    table = np.array([[row[name] for name in names] for row in rendered])
    print(f"{'':20}{'real':>30}{'rendered':>30}")
    for column, name in enumerate(names):
        spread = [np.quantile(x[:, column], (0.1, 0.5, 0.9)) for x in (np.concatenate(sequences), table)]
        print(f"{name:20}" + "".join(f"{'':3}" + "".join(f"{q:9.3f}" for q in quantiles) for quantiles in spread))
    print(f"classified with an accuracy of {accuracy(sequences, table):.3f}")
    return 0


if __name__ == "__main__":
    if importlib.util.find_spec("stream_recon") is None:
        sys.exit("compare_images: install the package first (pip install -e .)")
    sys.path[:1] = [str(Path(__file__).resolve().parents[1])]
    sys.exit(main())
