"""Images that a program gives as a source."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.images import open_images
from stream_recon.configs.errors import ConfigError, InputError

NOISE = np.random.default_rng(0).integers(0, 255, (48, 64, 3), dtype=np.uint8)
OTHER = NOISE[::-1].copy()


def filled(count: int) -> Iterator[NDArray[np.uint8]]:
    """Images in one buffer, as of a camera's driver."""
    buffer = np.zeros((48, 64, 3), np.uint8)
    for number in range(count):
        buffer[:] = number
        yield buffer


def test_a_buffer_that_is_used_again_gives_all_its_images_in_order() -> None:
    with open_images(filled(5), FrameChoice()) as source:
        frames = list(source)
    assert [(frame.index, int(frame.rgb[0, 0, 0])) for frame in frames] == [(k, k) for k in range(5)]
    assert [frame.timestamp for frame in frames] == pytest.approx([k / 30 for k in range(5)])


def test_options_choose_among_them_as_among_frames_of_a_video() -> None:
    timed = [(10 + 0.1 * number, NOISE) for number in range(20)]
    for choice, expected in (
        (FrameChoice(stride=4, max_frames=3), [0, 4, 8]),
        (FrameChoice(start=11.0, end=11.25), [10, 11, 12]),
        (FrameChoice(fps=2.0), [0, 5, 10, 15]),
    ):
        with open_images(timed, choice) as source:
            assert [frame.index for frame in source] == expected and not source.live
    with open_images(timed, FrameChoice()) as source:
        assert source.frame_hint == 20
        assert [frame.index for frame in source.frames_at({3, 7})] == [3, 7]


@pytest.mark.parametrize(
    ("images", "what"),
    [
        ([], "there are no images"),
        (iter(()), "there are no images"),
        ([NOISE.tolist()], "not list"),
        ([NOISE / 255], "not float64"),
        ([[NOISE, NOISE]], "rig=FILE"),
        ([(0.0, [NOISE, NOISE])], "rig=FILE"),
        (["a.jpg", "b.jpg"], "not str"),
        (NOISE, r"not uint8 \[64, 3\]"),
        ([("soon", NOISE)], "give seconds"),
        ([(float("inf"), NOISE)], "finite"),
        ([(np.timedelta64(1, "s"), NOISE)], "give seconds"),
        ([np.ma.masked_array(NOISE, NOISE > 9)], "not MaskedArray"),
    ],
)
def test_what_is_no_image_is_refused_before_a_run_begins(images: Any, what: str) -> None:
    with pytest.raises(InputError, match=what):
        open_images(images, FrameChoice())


@pytest.mark.parametrize(("second", "what"), [((1.0, OTHER), "times must rise"), (OTHER[0], "is uint8")])
def test_what_is_wrong_later_is_told_where_it_comes(second: Any, what: str) -> None:
    with open_images([(1.0, NOISE), second], FrameChoice()) as source:
        assert (next(source).rgb == NOISE).all()
        with pytest.raises(InputError, match=what):
            next(source)


@pytest.mark.parametrize(
    "choice", [FrameChoice(topic="/image"), FrameChoice(camera="exif"), FrameChoice(fps=2.0, stride=2)]
)
def test_options_that_images_do_not_have_are_refused(choice: FrameChoice) -> None:
    with pytest.raises(ConfigError):
        open_images([NOISE], choice)


def test_an_error_of_the_program_itself_comes_through() -> None:
    def failing() -> Iterator[NDArray[np.uint8]]:
        yield NOISE
        raise KeyError("no more")

    with open_images(failing(), FrameChoice()) as source:
        next(source)
        with pytest.raises(KeyError):
            next(source)
