#!/usr/bin/env python3
"""Put faults back into the program and count the cases until the fuzzer finds each.

scripts/reliability/fault_trial.py               # all faults, at most 2,000 cases each
scripts/reliability/fault_trial.py --only lens
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from fuzzing.processes import prepare, run_case
from stream_recon.app.datasets import recording, source_identity
from stream_recon.app.export import formats as export_formats
from stream_recon.app.export import target
from stream_recon.app.export.render import film
from stream_recon.app.metric_scale import gps_alignment, gps_tracks, track_tables
from stream_recon.app.result import commit, files, lock
from stream_recon.app.sources import camera_files, capture, image_decoding, masks

MOST = 2000


def cut_coefficients() -> None:
    real = camera_files.distortion
    vars(camera_files)["distortion"] = lambda model, numbers, fisheye=False: real(model, numbers[:5], fisheye)


def ignore_units() -> None:
    real = track_tables._name_and_unit
    vars(track_tables)["_name_and_unit"] = lambda title: (real(title)[0], "")


def guess_offsets() -> None:
    real = vars(gps_alignment)["find_offset"]

    def confident(*arguments: Any) -> Any:
        found = real(*arguments)
        return None if found is None else type(found)(found.seconds, found.misfit, apart=found.apart)

    vars(gps_alignment)["find_offset"] = confident


def turn_images() -> None:
    vars(recording)["fits_stored"] = lambda images, size: False


def square_pixels() -> None:
    capture.PixelShape.squared = lambda self, image: image  # type: ignore[method-assign,assignment]


def compare_nothing() -> None:
    vars(source_identity)["_difference"] = lambda *arguments, **options: None


def follow_links() -> None:
    vars(files)["temporary_name"] = lambda path: path.with_name(path.name + ".part")
    vars(files)["open_new"] = lambda path: os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)


def forget_the_journal() -> None:
    def do(self: Any) -> None:
        for part, name in list(self._renames.items()):
            (self._folder / part).replace(self._folder / name)
            del self._renames[part]
        for name in self._removed:
            (self._folder / name).unlink(missing_ok=True)

    commit.FolderChange.commit = do  # type: ignore[method-assign]


def open_anything() -> None:
    for module in (camera_files, gps_tracks):
        vars(module)["read_file"] = lambda path, limit=0: path.read_bytes()


def replace_targets() -> None:
    for module in (export_formats, film):
        vars(module)["check_target"] = lambda *arguments, **options: None
        vars(module)["check_readme"] = lambda *arguments, **options: None
    vars(target)["check_target"] = lambda *arguments, **options: None


def number_masks_from_one() -> None:
    masks.MaskFolder.read = lambda *arguments, **options: None  # type: ignore[method-assign]


def resume_anything() -> None:
    vars(source_identity)["check_source"] = lambda *arguments: None
    vars(source_identity)["source_change"] = lambda *arguments: None


def lock_nothing() -> None:
    vars(lock)["_lock"] = lambda file: None
    vars(lock)["complete_change"] = lambda folder: None


def stretch_deep_images() -> None:
    library = vars(image_decoding)["cv2"]
    real = library.imdecode

    def wrong(data: Any, flags: int) -> Any:
        image = real(data, flags)
        return image >> 4 if image is not None and image.dtype == np.uint16 else image

    vars(image_decoding)["cv2"] = SimpleNamespace(**{**vars(library), "imdecode": wrong})


FAULTS: dict[str, tuple[str, Callable[[], None]]] = {
    "coefficients beyond the fifth are dropped": ("lens", cut_coefficients),
    "units in headers are dropped": ("units", ignore_units),
    "an ambiguous clip is guessed": ("clip", guess_offsets),
    "images are turned, poses are not": ("turned", turn_images),
    "pixels count as square": ("film", square_pixels),
    "a source is known by its name": ("other_source", compare_nothing),
    "temporary names are followed": ("links", follow_links),
    "files are exchanged one by one": ("killed", forget_the_journal),
    "pipes and devices are opened": ("special", open_anything),
    "exports replace what is there": ("export", replace_targets),
    "masks are not applied": ("masks", number_masks_from_one),
    "a run is resumed on any source": ("resume", resume_anything),
    "two commands write at once": ("together", lock_nothing),
    "files are exchanged without a journal": ("killed_write", forget_the_journal),
    "16 bits are cut at the wrong end": ("picture", stretch_deep_images),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="family of cases of one fault")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    missed = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as place:
        source = prepare(Path(place))
        for name, (kind, put_back) in FAULTS.items():
            if options.only in (None, kind):
                found = _cases_until_found(kind, put_back, options.seed, source)
                missed += found is None
                print(f"{name}: {'not found' if found is None else f'found by case {found + 1} of {kind}'}", flush=True)
    return int(missed > 0)


def _cases_until_found(kind: str, put_back: Callable[[], None], seed: int, source: Path) -> int | None:
    """Number of the first case that fails, in a process with the fault; None after `MOST` cases."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        os.close(reading)
        put_back()
        found = next((n for n in range(MOST) if run_case(kind, seed, n, source).failed), MOST)
        os.write(writing, str(found).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        number = int(answer.read() or MOST)
    os.waitpid(process, 0)
    return number if number < MOST else None


if __name__ == "__main__":
    sys.exit(main())
