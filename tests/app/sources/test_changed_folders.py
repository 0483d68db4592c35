"""Folders and archives of images and masks with one file renamed, removed, doubled or moved: never others silently."""

import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.app.web.contents import unpack
from stream_recon.configs.errors import StreamReconError
from tests.app.media import write_video
from tests.app.sources.test_names import textured
from tests.mutations import Mutant, silently_other

Files = dict[str, NDArray[np.uint8]]
COUNT = 5


def picture(number: int) -> NDArray[np.uint8]:
    return np.asarray(textured(number))[..., ::-1]


def mask(number: int) -> NDArray[np.uint8]:
    image = np.full((48, 64), 255, np.uint8)
    image[:, : 6 * number + 6] = 0
    return image


def changed_files(files: Files, others: tuple[str, ...] = ()) -> Iterator[Mutant[Files]]:
    """Changes to names and to what files hold; ``others``: further words of which a message must have one.

    Files themselves are data: with fewer of them there are fewer images.
    """
    for name, image in files.items():
        left = {key: value for key, value in files.items() if key != name}
        stem, _, suffix = name.rpartition(".")
        names = (name, stem, *others)
        yield Mutant("renamed", names, {f"{stem}zzz.{suffix}": image, **left})
        yield Mutant("upper case of", names, {f"{stem}.{suffix.upper()}": image, **left})
        yield Mutant("other format beside", names, {f"{stem}.bmp": image, **files})
        yield Mutant("other picture of the name of", names, {f"{stem}.bmp": 255 - image, **files})
        yield Mutant("wider by a digit", names, {"0" + name: image, **left})
        yield Mutant("turned", names, {name: np.ascontiguousarray(image.swapaxes(0, 1)), **left})
        yield Mutant("of 16 bits", names, {name: image.astype(np.uint16) * 257, **left})
        yield Mutant("halved", names, {name: image[::2, ::2], **left})
    yield Mutant("listed in reverse", others, dict(reversed(files.items())))


def write(folder: Path, files: Files) -> Path:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    for name, image in files.items():
        cv2.imwrite(str(folder / name), image)
    return folder


@pytest.mark.parametrize("form", ["{:04d}.png", "IMG_{:d}.png", "walk_{:02d}_left.png"])
def test_no_changed_folder_gives_other_frames_silently(tmp_path: Path, form: str) -> None:
    whole = {form.format(number): picture(number) for number in range(8, 8 + COUNT)}

    def read(files: Files) -> tuple[Any, list[str]]:
        with open_source(str(write(tmp_path / "a", files))) as source:
            return [int(frame.rgb.astype(int).sum()) // 20000 for frame in source], source.warnings

    expected, said = read(whole)
    assert not said
    assert silently_other(read, changed_files(whole), expected, StreamReconError) == []


@pytest.mark.parametrize("is_video", [False, True])
def test_no_changed_masks_are_others_silently(tmp_path: Path, is_video: bool) -> None:
    whole = {f"{number:04d}.png": mask(number) for number in range(COUNT)}
    images = {f"{number:04d}.jpg": picture(number) for number in range(COUNT)}
    path = write_video(tmp_path / "a.mp4", COUNT) if is_video else write(tmp_path / "a", images)

    def read(files: Files) -> tuple[Any, list[str]]:
        choice = FrameChoice(masks=str(write(tmp_path / "masks", files)))
        with open_source(str(path), choice) as source:
            return [None if f.mask is None else int(f.mask.sum()) for f in source], source.warnings

    expected, said = read(whole)
    assert not said
    fewer = [Mutant("removed", ("mask",), {k: v for k, v in whole.items() if k != name}) for name in whole]
    levels = [Mutant("levels of", ("mask",), {**whole, name: image // 255}) for name, image in whole.items()]
    mutants = (*fewer, *levels, *changed_files(whole, ("mask",)))
    assert silently_other(read, mutants, expected, StreamReconError) == []


def test_no_changed_archive_is_unpacked_as_another_silently(tmp_path: Path) -> None:
    whole = {f"room/{number}.png": picture(number) for number in range(8, 8 + COUNT)}

    def read(files: Files) -> tuple[Any, list[str]]:
        path, target = tmp_path / "a.zip", tmp_path / str(len(list(tmp_path.iterdir())))
        with zipfile.ZipFile(path, "w") as archive:
            for name, image in files.items():
                archive.writestr(name, cv2.imencode("." + name.rpartition(".")[2].lower(), image)[1].tobytes())
        unpack(path, target, 10**9, 100)
        with open_source(str(target)) as source:
            return [int(frame.rgb.astype(int).sum()) // 20000 for frame in source], source.warnings

    expected, said = read(whole)
    assert not said
    # Files are numbered in the order of their names, and told by their number.
    numbers = tuple(f"00000{number}" for number in range(COUNT))
    mutants = (replace(m, names=(*m.names, *numbers)) for m in changed_files(whole) if m.change != "wider by a digit")
    hidden = [
        Mutant("hidden", (), {**whole, name: picture(3)}) for name in ("room/.8.png", ".old/8.png", "__MACOSX/8.png")
    ]
    assert silently_other(read, (*mutants, *hidden), expected, StreamReconError) == []
