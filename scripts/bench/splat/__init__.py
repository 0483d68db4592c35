"""Quality of Gaussian splats trained from an export, compared with structure from motion.

`prepare` writes the models on any machine. `python -m bench.splat DIR` trains on them; it needs a GPU and
gsplat. "trained here" is the program's own trainer.
"""

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from bench import ROOT


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the models")
    parser.add_argument("--video", type=Path, help="write the models of this video; without it, train")
    parser.add_argument("--every", type=int, default=3, help="take every n-th frame of the video (default 3)")


def run(options: Namespace) -> None:
    if options.video is not None:
        from bench.splat.prepare import prepare

        prepare(options.video.resolve(), options.folder, options.every)
        return
    command = [sys.executable, "-m", "bench.splat", str(options.folder.resolve())]
    raise SystemExit(subprocess.run(command, cwd=ROOT / "scripts", check=False).returncode)
