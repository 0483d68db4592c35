"""Whether a source is still the one that a result was made from, by its content."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.datasets.source_identity import check_source, source_change
from stream_recon.app.result.folder import read_result
from stream_recon.app.result.writer import ResultWriter
from stream_recon.app.run.pipeline import reconstruct
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import Source, open_source
from stream_recon.configs.errors import InputError
from tests.app.fake_engine import FakeEngine, run_info

SIZE = (160, 120)
FRAMES = 24


def picture(number: int, seed: int = 0) -> NDArray[np.uint8]:
    """A slowly moving view of a texture."""
    random = np.random.default_rng(seed)
    wide = cv2.GaussianBlur(random.integers(0, 255, (200, 400, 3)).astype(np.uint8), (0, 0), 3)
    wide = cv2.normalize(wide, wide, 0, 255, cv2.NORM_MINMAX)
    return wide[20 : 20 + SIZE[1], 2 * number : 2 * number + SIZE[0]].copy()


def film(path: Path, numbers: range, seed: int = 0, fps: float = 20.0, code: str = "MJPG") -> Path:
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*code), fps, SIZE)
    for number in numbers:
        writer.write(picture(number, seed))
    writer.release()
    return path


def photographs(folder: Path, numbers: range, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        cv2.imwrite(str(folder / f"{number:03d}.jpg"), picture(number, seed))
    return folder


def reconstructed(path: Path, out: Path, choice: FrameChoice = FrameChoice()) -> Callable[[Path], str | None]:  # noqa: B008
    """A result of a source; gives what differs in another one."""
    with open_source(str(path), choice) as source:
        reconstruct(source, FakeEngine(), ResultWriter(out, run_info()))
    cameras = read_result(out).cameras

    def change(other: Path) -> str | None:
        opened: Callable[[], Source] = partial(open_source, str(other), choice)
        return source_change(out, cameras, opened)

    return change


def test_a_film_is_known_by_its_pictures_and_times(tmp_path: Path) -> None:
    change = reconstructed(film(tmp_path / "a.avi", range(FRAMES)), tmp_path / "out")
    assert change(tmp_path / "a.avi") is None
    assert change(film(tmp_path / "b.avi", range(FRAMES), code="XVID")) is None, "another encoding"
    longer = change(film(tmp_path / "c.avi", range(FRAMES + 6)))
    assert longer is None, "what comes after the result does not matter"
    shifted = change(film(tmp_path / "d.avi", range(3, FRAMES + 3)))
    assert shifted is not None and "picture" in shifted
    assert "picture" in (change(film(tmp_path / "e.avi", range(FRAMES), seed=1)) or "")
    assert "is at" in (change(film(tmp_path / "f.avi", range(FRAMES), fps=25.0)) or "")
    assert "missing" in (change(film(tmp_path / "g.avi", range(FRAMES - 5))) or "")


@pytest.mark.parametrize("shift", [1, 2, 5])
def test_a_cut_of_few_frames_is_noticed(tmp_path: Path, shift: int) -> None:
    change = reconstructed(film(tmp_path / "a.avi", range(FRAMES)), tmp_path / "out")
    assert change(film(tmp_path / "b.avi", range(shift, FRAMES + shift))) is not None


def test_another_film_from_some_frame_on_is_noticed(tmp_path: Path) -> None:
    change = reconstructed(photographs(tmp_path / "a", range(FRAMES)), tmp_path / "out")
    photographs(tmp_path / "b", range(3))
    photographs(tmp_path / "b", range(3, FRAMES), seed=4)
    assert "shows another picture" in (change(tmp_path / "b") or "")


def test_mirrored_pictures_are_noticed(tmp_path: Path) -> None:
    change = reconstructed(photographs(tmp_path / "a", range(FRAMES)), tmp_path / "out")
    for path in (tmp_path / "a").iterdir():
        cv2.imwrite(str(path), cv2.imread(str(path))[:, ::-1])
    assert change(tmp_path / "a") is not None


def test_removed_images_are_noticed(tmp_path: Path) -> None:
    change = reconstructed(photographs(tmp_path / "a", range(FRAMES)), tmp_path / "out")
    (tmp_path / "a/007.jpg").unlink()
    assert change(tmp_path / "a") is not None
    with pytest.raises(InputError, match=r"source has changed.*--overwrite"):
        result = read_result(tmp_path / "out")
        check_source(tmp_path / "out", result.cameras, partial(open_source, str(tmp_path / "a")))


def test_changed_masks_are_noticed(tmp_path: Path) -> None:
    photographs(tmp_path / "a", range(FRAMES))
    (tmp_path / "masks").mkdir()
    mask = np.full(SIZE[::-1], 255, np.uint8)
    mask[:40] = 0
    for number in range(FRAMES):
        cv2.imwrite(str(tmp_path / f"masks/{number:03d}.png"), mask)
    change = reconstructed(tmp_path / "a", tmp_path / "out", FrameChoice(masks=str(tmp_path / "masks")))
    assert change(tmp_path / "a") is None
    for path in (tmp_path / "masks").iterdir():
        cv2.imwrite(str(path), mask[::-1])
    assert "mask" in (change(tmp_path / "a") or "")


def test_frames_of_a_choice_are_found_again(tmp_path: Path) -> None:
    choice = FrameChoice(fps=7.0, start=0.2)
    change = reconstructed(film(tmp_path / "a.avi", range(FRAMES)), tmp_path / "out", choice)
    assert change(tmp_path / "a.avi") is None
