"""python3 -m bench.splat DIR: train on every model under DIR; prints a table, writes figures.json into --out.

One process a training, several at a time: a training of small images leaves most of a GPU idle.
"""

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bench.splat.product import MODEL, SCENE_NAME
from bench.splat.scene import MODEL_NAME, Figures, Scene, load_scene
from bench.splat.train import COMPARED, STEPS, train_one


def row(scene: Scene, figures: Figures, common: set[str]) -> dict[str, Any]:
    return {
        "scene": scene.folder.parent.name,
        "model": scene.folder.name,
        "images": f"{len(scene.names)} of {scene.chosen}",
        "held out": f"{int(scene.held_out.sum())} of {scene.chosen_held_out}",
        "psnr": figures.psnr,
        "psnr of common": sum(figures.psnr_of[name] for name in common) / max(len(common), 1),
        "ssim": figures.ssim,
        "points": len(scene.points),
        "gaussians": figures.gaussians,
        "model seconds": scene.seconds,
        "training seconds": figures.seconds,
        "memory, GB": figures.memory_gb,
        "opacity in free space": figures.floaters,
    }


def table(scenes: dict[Path, Scene], done: dict[Path, Figures]) -> list[dict[str, Any]]:
    """A row for each training; ``psnr of common``: over the held-out images that all models of a scene have."""
    rows = []
    for folder in sorted(done):
        others = [done[other].psnr_of for other in done if other.parent == folder.parent]
        common = set(others[0]).intersection(*others[1:])
        rows.append(row(scenes[folder], done[folder], common))
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
    for values in rows:
        digits = {"ssim": 3, "opacity in free space": 4, "model seconds": 0, "training seconds": 0}
        shown = (f"{v:.{digits.get(k, 2)}f}" if isinstance(v, float) else str(v) for k, v in values.items())
        print("| " + " | ".join(shown) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 -m bench.splat", description=__doc__)
    parser.add_argument("root", type=Path, metavar="DIR", help="what 'python scripts/bench splat' prepared")
    parser.add_argument("--jobs", type=int, default=4, help="trainings at a time on each GPU")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path(), help="folder for figures.json")
    arguments = parser.parse_args()
    scenes = {path.parent: load_scene(path.parent) for path in sorted(arguments.root.glob(f"*/*/{MODEL_NAME}"))}
    for path in sorted(arguments.root.glob(f"*/{MODEL}/{SCENE_NAME}")):
        same = scenes.get(path.parent.with_name(COMPARED))
        if same is not None:
            scenes[path.parent] = replace(same, folder=path.parent)
    if not scenes:
        parser.error(f"no {MODEL_NAME} under {arguments.root}/SCENE/MODEL: prepare some first")
    if not torch.cuda.is_available():
        parser.error("no CUDA device is here")
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    # Else each process has as many threads as there are cores.
    os.environ["OMP_NUM_THREADS"] = "2"
    done: dict[Path, Figures] = {}
    begin = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs * len(devices), mp_context=context) as pool:
        tasks = {
            pool.submit(train_one, folder, devices[number % len(devices)], arguments.steps): folder
            for number, folder in enumerate(scenes)
        }
        for task in as_completed(tasks):
            folder = tasks[task]
            try:
                done[folder] = task.result()
            except Exception as error:  # noqa: BLE001  one training's failure leaves the others' figures
                print(f"{folder}: failed: {error!r}", flush=True)
                continue
            rows = table(scenes, done)
            # After each: what is done is there if time runs out.
            print_table([line for line in rows if (line["scene"], line["model"]) == (folder.parent.name, folder.name)])
            content = {
                "device": torch.cuda.get_device_name(),
                "steps": arguments.steps,
                "rows": rows,
                "psnr": {f"{f.parent.name}/{f.name}": asdict(d)["psnr_of"] for f, d in done.items()},
            }
            (arguments.out / "figures.json").write_text(json.dumps(content, indent=1) + "\n")
    print(
        f"{torch.cuda.get_device_name()} x {len(devices)}, torch {torch.__version__}, {arguments.steps} steps, "
        f"{arguments.jobs} trainings at a time on each; {time.perf_counter() - begin:.0f} s in all"
    )
    if done:
        print_table(table(scenes, done))
    if len(done) < len(scenes):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
