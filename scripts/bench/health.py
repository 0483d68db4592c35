"""Detection of discontinuities: share of inserted faults that are detected, and false alarms on real videos.

Rendered walks are joined by cuts, black frames, a covered lens, or a fade to black and back. A fault counts as detected
if exactly one new segment begins, at most `SOON` frames late. A real video given has no fault: every new segment and
every interval of weak tracking in it is a false alarm.
"""

import itertools
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.scenarios.images import rendered
from bench.table import header, row
from stream_recon.app.core.types import PreparedFrame
from stream_recon.app.engine.engine import load_engine
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.preprocess import plan_image
from stream_recon.app.sources.segmentation import DiscontinuityDetector
from stream_recon.app.sources.source import open_source
from stream_recon.configs.schema import load_preset
from training.synthetic.generator import ROOM

Image = NDArray[np.uint8]
Walk = Sequence[Image]
CLIPS, FRAMES, HEIGHT, WIDTH, FOCAL = 8, 40, 168, 224, 190.0
SEED = 2
BEFORE, AFTER = 12, 20
"""Frames before a fault at the least, and after it."""
FADE, BLANK = 8, 8
SOON = 10


def faults(walks: Sequence[Walk]) -> None:
    """Print how many are noticed of each kind."""
    header("fault", "detected", "of", "frames late, mean")
    for name, fault in {"cut": _cut, "black": _black, "covered lens": _covered, "into the dark": _dark}.items():
        noise = np.random.default_rng(0)
        late = [
            _delay(*fault(walks[a], walks[b], BEFORE + (3 * a + b) % 8, noise))
            for a, b in itertools.permutations(range(len(walks)), 2)
        ]
        seen = [frames for frames in late if frames is not None]
        row(name, len(seen), len(late), f"{np.mean(seen):.1f}")


def alarms(videos: Sequence[str], stride: int) -> None:
    """Print how many there are where nothing is wrong."""
    print()
    header("video", "frames", "new segments", "weak intervals")
    engine = load_engine()
    for video in videos:
        engine.reset()
        with open_source(video, FrameChoice(stride=stride)) as source:
            summary = reconstruct(source, engine, None)
        counts = summary.frames_reconstructed, len(summary.segments), len(summary.health["weak"])
        row(Path(video).name, *counts)


def _walks(seed: int) -> list[Walk]:
    return [rendered(ROOM, FRAMES, seed + k, size=(WIDTH, HEIGHT), focal=FOCAL).images for k in range(CLIPS)]


Faulty = tuple[list[Image], int]
"""Frames, and the first one of the second walk."""


def _cut(one: Walk, other: Walk, at: int, noise: np.random.Generator) -> Faulty:
    return [*one[:at], *other[:AFTER]], at


def _noisy(level: float | NDArray[np.float64], noise: np.random.Generator) -> Image:
    return np.clip(level + noise.normal(0, 2, (HEIGHT, WIDTH, 3)), 0, 255).astype(np.uint8)


def _black(one: Walk, other: Walk, at: int, noise: np.random.Generator) -> Faulty:
    return [*one[:at], *(_noisy(2.0, noise) for _ in range(BLANK)), *other[:AFTER]], at + BLANK


def _covered(one: Walk, other: Walk, at: int, noise: np.random.Generator) -> Faulty:
    hand = noise.uniform(20, 120, 3)
    return [*one[:at], *(_noisy(hand, noise) for _ in range(BLANK)), *other[:AFTER]], at + BLANK


def _dark(one: Walk, other: Walk, at: int, noise: np.random.Generator) -> Faulty:
    light = np.geomspace(0.7, 0.01, FADE)
    fading = [_noisy(gain * one[at + n], noise) for n, gain in enumerate(light)]
    coming = [_noisy(gain * other[n], noise) for n, gain in enumerate(light[::-1])]
    night = [_noisy(0.0, noise) for _ in range(BLANK)]
    return [*one[:at], *fading, *night, *coming, *other[FADE:AFTER]], at + FADE + BLANK


def _delay(images: list[Image], second: int) -> int | None:
    """Delay in frames of the new segment; None if there is none, several, or one too early or too late."""
    transform = plan_image((WIDTH, HEIGHT), load_preset("small").image, 14)
    detector = DiscontinuityDetector()
    for _ in detector.watch(PreparedFrame(n, n / 20, image, transform) for n, image in enumerate(images)):
        pass
    if len(detector.segments) != 1:
        return None
    late = detector.segments[0].index - second
    return late if 0 <= late <= SOON else None


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("videos", nargs="*", metavar="VIDEO", help="video or folder of images without any fault")
    parser.add_argument("--stride", type=int, default=1, help="of the videos")
    parser.add_argument("--seed", type=int, default=SEED, help="of the rendered walks")


def run(options: Namespace) -> None:
    faults(_walks(options.seed))
    if options.videos:
        alarms(options.videos, options.stride)
