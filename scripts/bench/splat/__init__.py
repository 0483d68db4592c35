"""Quality of Gaussian splats, by the program's trainer and by a plain one, on our model and on structure from motion.

With --video the models are written, on any machine. Without it all models are trained on, one after another, which
needs a GPU and gsplat.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the models")
    parser.add_argument("--video", type=Path, help="write the models of this video; without it, train")
    parser.add_argument("--every", type=int, default=3, help="take every n-th frame of the video (default 3)")
    parser.add_argument("--steps", type=int, default=7_000)


def run(options: Namespace) -> None:
    # Training needs gsplat, and preparation pycolmap.
    if options.video is not None:
        from bench.splat.prepare import prepare

        prepare(options.video.resolve(), options.folder, options.every)
    else:
        from bench.splat.train import train_all

        train_all(options.folder, options.steps)
