#!/usr/bin/env python3
"""Train the embedded network on procedural scenes, on one GPU or, under torchrun, on many.

scripts/train.py --minutes 25 --out runs/a
torchrun --standalone --nproc_per_node=4 scripts/train.py --minutes 25 --out runs/a
scripts/train.py --minutes 25 --out runs/b --weights runs/a/model.safetensors --auxiliary runs/a/auxiliary.safetensors
"""

import argparse
import dataclasses
import importlib.machinery
import importlib.util
import logging
import os
import sys
from pathlib import Path

# To be set before torch starts: NVLink multicast hangs on some hosts, and clips of many shapes fragment memory.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
if "LOCAL_RANK" in os.environ:
    # Every worker sees its GPU as the first one: compiled code then is the same for all, and found in the cache on
    # disk (TORCHINDUCTOR_CACHE_DIR; worth keeping from run to run, since compiling takes minutes).
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    local = int(os.environ["LOCAL_RANK"])
    os.environ["CUDA_VISIBLE_DEVICES"] = visible.split(",")[local] if visible else str(local)

REPOSITORY = Path(__file__).resolve().parents[1]


def find_package() -> None:
    """Make ``stream_recon.*`` importable from the repository's folders where it is not installed."""
    if importlib.util.find_spec("stream_recon") is not None:
        return
    spec = importlib.machinery.ModuleSpec("stream_recon", None, is_package=True)
    spec.submodule_search_locations = [str(REPOSITORY)]
    sys.modules["stream_recon"] = importlib.util.module_from_spec(spec)


def parse_arguments() -> argparse.Namespace:
    from training.synthetic import SceneShares

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--minutes", type=float, default=25.0, help="time budget, compiling included (25)")
    parser.add_argument("--out", type=Path, default=Path("runs/latest"), help="folder for weights and metrics")
    parser.add_argument("--weights", type=Path, help="continue from these weights")
    parser.add_argument("--auxiliary", type=Path, help="and from this auxiliary head")
    parser.add_argument(
        "--only", metavar="PARTS", help="parts of the network that learn, as odometry.flow_head,depth_head (all)"
    )
    parser.add_argument("--tiles", type=Path, help="photo tiles for the scenes (npz)")
    parser.add_argument("--preset", default="small", help="preset name or TOML file (small)")
    parser.add_argument("--frames-per-step", type=int, default=384, help="frames a step and GPU (384)")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="peak learning rate (1e-3)")
    parser.add_argument("--warm-up-steps", type=int, help="steps to the peak (200; 50 where a run continues)")
    shares = SceneShares()
    parser.add_argument("--plain", type=float, default=shares.plain, help=f"share of plain images ({shares.plain})")
    parser.add_argument("--turning", type=float, default=shares.turning, help=f"of sharp turns ({shares.turning})")
    parser.add_argument("--narrow", type=float, default=shares.narrow, help=f"of narrow lenses ({shares.narrow})")
    parser.add_argument("--wide", type=float, default=shares.wide, help=f"of wide lenses ({shares.wide})")
    parser.add_argument("--people", type=float, default=0.1, help="of people who walk through (0.1)")
    parser.add_argument(
        "--odd-looks", type=float, default=shares.odd_looks, help=f"of random filters ({shares.odd_looks})"
    )
    parser.add_argument(
        "--seed", type=int, help="random seed (default: 0, or derived from the digest of given weights)"
    )
    parser.add_argument("--max-steps", type=int, help="stop after this many steps")
    parser.add_argument("--validate-clips", type=int, default=96, help="held-out clips; 0: no validation (96)")
    parser.add_argument("--no-compile", action="store_true", help="run everything uncompiled")
    return parser.parse_args()


def train(arguments: argparse.Namespace) -> None:
    import torch

    from stream_recon.configs.schema import load_preset
    from stream_recon.models.embedded import file_sha256
    from training.distributed import join_workers
    from training.model import build_model
    from training.schedule import RateConfig, ScheduleConfig
    from training.synthetic import SceneShares
    from training.trainer import Trainer, TrainingConfig

    seed, warm_up = arguments.seed, arguments.warm_up_steps
    preset = load_preset(arguments.preset)
    workers = join_workers()
    torch.manual_seed(seed or 0)
    only = arguments.only.split(",") if arguments.only else ()
    model = build_model(preset.network, arguments.weights, arguments.auxiliary, only).to(workers.device)
    earlier = arguments.weights
    if seed is None:
        seed = int(file_sha256(earlier)[:8], 16) if earlier else 0
    if warm_up is None:
        warm_up = 50 if earlier else 200
    schedule = ScheduleConfig(frames_per_step=arguments.frames_per_step)
    if earlier:
        # Trained weights have no need of short clips first.
        schedule = dataclasses.replace(schedule, late_from=0.0)
    config = TrainingConfig(
        minutes=arguments.minutes,
        seed=seed,
        max_steps=arguments.max_steps,
        validate_clips=arguments.validate_clips,
        compile=workers.device.type == "cuda" and not arguments.no_compile,
        tiles=arguments.tiles,
        schedule=schedule,
        shares=SceneShares(
            plain=arguments.plain,
            turning=arguments.turning,
            narrow=arguments.narrow,
            wide=arguments.wide,
            people=arguments.people,
            odd_looks=arguments.odd_looks,
        ),
        rate=RateConfig(arguments.learning_rate, warm_up),
    )
    trainer = Trainer(model, preset, config, workers, arguments.out)
    summary = trainer.run()
    if workers.leads:
        print(summary)
    workers.close()


def main() -> int:
    find_package()
    from stream_recon.configs.errors import StreamReconError

    arguments = parse_arguments()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stdout)
    try:
        train(arguments)
    except StreamReconError as error:
        print(f"train: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
