"""Streams of images through a loaded model."""

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import stream_recon as sr
from stream_recon.app.core.transforms import align
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from tests.app.media import quick_preset

SAMPLE = Path(__file__).resolve().parents[3] / "app" / "sample" / "walkthrough.mp4"
FRAMES = 12

Images = list[NDArray[np.uint8]]


@pytest.fixture(scope="module")
def images() -> Images:
    with open_source(str(SAMPLE), FrameChoice(max_frames=FRAMES)) as source:
        return [np.asarray(cv2.resize(frame.rgb, (128, 96), interpolation=cv2.INTER_AREA)) for frame in source]


@pytest.fixture(scope="module")
def preset(tmp_path_factory: pytest.TempPathFactory) -> str:
    return quick_preset(tmp_path_factory.mktemp("preset"))


@pytest.fixture(scope="module")
def model(preset: str) -> sr.Model:
    return sr.load_model(preset, device="cpu")


@pytest.fixture(scope="module")
def poses(model: sr.Model, images: Images) -> NDArray[np.float64]:
    """Poses of a stream on which nothing went wrong."""
    with model.stream(mapping="off") as stream:
        for rgb in images:
            stream.push(rgb)
    assert np.allclose(stream.trajectory.timestamps, np.arange(FRAMES) / 30)
    return stream.trajectory.poses


NAN = float("nan")
GOOD = np.zeros((48, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((GOOD.tolist(),), "not list"),
        (([GOOD, GOOD], 2.0), "list; images of a rig's cameras: sr.reconstruct.*rig=FILE"),
        ((GOOD.astype(np.float32),), r"not float32 \[48, 64, 3\]"),
        ((GOOD[:, :, 0],), r"not uint8 \[48, 64\]"),
        ((GOOD[:40],), "64x40, and the first one was 64x48"),
        ((GOOD, NAN), "finite"),
        ((GOOD, 1.0), "1 s, and that of the image before 1 s"),
        ((GOOD, "soon"), "'soon': give seconds"),
        ((GOOD, "1.5"), "'1.5': give seconds"),
        ((GOOD, True), "True: give seconds"),
        ((GOOD, float("inf")), "finite"),
        ((GOOD, None, np.zeros((40, 64), np.bool_)), r"not bool \[40, 64\]"),
        ((np.zeros((48, 64, 4), np.uint8),), r"not uint8 \[48, 64, 4\]"),
        ((GOOD, None, GOOD), r"a mask is bool \[48, 64\]"),
        ((GOOD, None, None, np.eye(3)), "an image has a pose, and the first one had none"),
    ],
)
def test_what_is_no_image_is_refused_by_what_came(model: sr.Model, arguments: tuple[Any, ...], what: str) -> None:
    with model.stream() as stream:
        stream.push(GOOD, 1.0)
        with pytest.raises(sr.InputError, match=what):
            stream.push(*arguments)
        stream.push(GOOD, 1.1)


def test_an_image_that_does_not_fit_the_camera_leaves_the_stream_as_it_was(model: sr.Model) -> None:
    camera = sr.Camera(60, 60, 31.5, 23.5, (-0.1, 0.02, 0, 0), size=(64, 48))
    with model.stream(camera, mapping="off") as stream:
        with pytest.raises(sr.InputError, match="calibrated at 64x48"):
            stream.push(np.zeros((48, 48, 3), np.uint8))
        stream.push(np.zeros((96, 128, 3), np.uint8))
        with pytest.raises(sr.InputError, match="first one was 128x96"):
            stream.push(GOOD)
    assert stream.trajectory.timestamps.tolist() == [0.0]


def test_an_array_that_is_used_again_and_an_error_of_a_listener_change_no_pose(
    model: sr.Model, images: Images, poses: NDArray[np.float64]
) -> None:
    class Listener:
        def add(self, result: sr.FrameResult) -> None:
            if result.index == 3:
                raise RuntimeError("not ready")

        def revise(self, revision: sr.Revision) -> None: ...

    buffer = np.empty_like(np.asfortranarray(images[0]))
    with model.stream(mapping="off", listeners=[Listener()]) as stream:
        for index, rgb in enumerate(images):
            buffer[:] = rgb
            try:
                stream.push(buffer)
            except RuntimeError:
                assert index == 7  # the last scale frame
    assert (stream.trajectory.poses == poses).all()


class Policy:
    """Every second frame; fails when it is told to."""

    evicts_first = False
    needs_flow = False

    def __init__(self) -> None:
        self.count, self.fails = 0, False

    def decide(self, flow: float | None) -> sr.Decision:
        if self.fails:
            self.fails = False
            raise RuntimeError("out of order")
        self.count += 1
        return sr.Decision(self.count % 2 == 0, flow)


def test_an_own_policy_chooses_the_keyframes_and_an_error_in_a_step_changes_nothing(
    model: sr.Model, images: Images
) -> None:
    policies, streams = (Policy(), Policy()), []
    keyframes: list[list[bool]] = [[], []]
    for number, policy in enumerate(policies):
        with model.stream(mapping="off", keyframes=policy) as stream:
            for index, rgb in enumerate(images):
                if number and index in (8, 10):
                    policy.fails = True
                    with pytest.raises(RuntimeError):
                        stream.push(images[0])
                items = stream.push(rgb)
                keyframes[number] += [item.is_keyframe for item in items if isinstance(item, sr.FrameResult)]
        streams.append(stream)
    assert keyframes[0] == keyframes[1] == [True] * 8 + [False, True, False, True]
    assert (streams[0].trajectory.poses == streams[1].trajectory.poses).all()


def test_streams_of_one_model_do_not_meet(model: sr.Model, images: Images, poses: NDArray[np.float64]) -> None:
    with model.stream(mapping="off") as one, model.stream(mapping="off", keyframes="every") as other:
        for rgb in images:
            one.push(rgb)
            other.push(np.ascontiguousarray(rgb[:, ::-1]))
    assert (one.trajectory.poses == poses).all()
    assert len(other.trajectory) == FRAMES


def test_listeners_get_what_push_returns(model: sr.Model, images: Images) -> None:
    got: list[sr.FrameResult | sr.Revision] = []

    class Listener:
        def add(self, result: sr.FrameResult) -> None:
            got.append(result)

        def revise(self, revision: sr.Revision) -> None:
            got.append(revision)

    returned: list[sr.FrameResult | sr.Revision] = []
    stream = model.stream(listeners=[Listener()])
    for rgb in images:
        returned += stream.push(rgb)
    returned += stream.finish()
    assert len(returned) == len(got) and all(a is b for a, b in zip(returned, got, strict=True))
    current = {}
    for item in returned:
        for frame in item.frames if isinstance(item, sr.Revision) else [item]:
            current[frame.index] = frame.T_world_camera
    assert (np.stack([current[index] for index in range(FRAMES)]) == stream.trajectory.poses).all()
    assert stream.finish() == []
    with pytest.raises(sr.InputError, match="finished"):
        stream.push(images[0])


def test_cuts_and_dark_pictures_are_what_they_are_in_a_run(
    model: sr.Model, images: Images, preset: str, tmp_path: Path
) -> None:
    dark = np.zeros_like(images[0])
    film = [*images[:9], dark, dark, *(np.ascontiguousarray(rgb[::-1]) for rgb in images[:4])]
    run = sr.reconstruct(film, tmp_path / "run", preset=preset, mapping="off", mesh=False, device="cpu")
    with model.stream(mapping="off") as stream:
        items = [item for rgb in film for item in stream.push(rgb)]
        items += stream.finish()
    segments = {item.index: item.segment for item in items if isinstance(item, sr.FrameResult)}
    assert segments == {index: int(index > 8) for index in (*range(9), *range(11, 15))}
    assert stream.warnings == [line for line in run.run["warnings"] if "new segment" in line] and stream.warnings
    assert (stream.trajectory.poses == run.trajectory.poses).all()


def test_a_step_that_fails_at_a_cut_ends_the_stream(model: sr.Model, images: Images) -> None:
    policy = Policy()
    turned = [np.ascontiguousarray(rgb[::-1]) for rgb in images[:4]]
    with model.stream(mapping="off", keyframes=policy) as stream:
        for rgb in images[:10]:
            stream.push(rgb)
        assert stream.push(turned[0]) == []
        policy.fails = True
        with pytest.raises(RuntimeError):
            for rgb in (images[10], images[11]):
                stream.push(rgb)
        with pytest.raises(sr.InputError, match="begin another one"):
            stream.push(images[11])


def test_a_known_camera_is_that_of_the_results(model: sr.Model, images: Images) -> None:
    height, width = images[0].shape[:2]
    camera = sr.Camera(0.8 * width, 0.8 * width, (width - 1) / 2, (height - 1) / 2)
    stream = model.stream(camera, mapping="off")
    stream.push(images[0], mask=np.ones((height, width), np.bool_))
    (result,) = stream.finish()
    assert isinstance(result, sr.FrameResult)
    assert (result.intrinsics.fx, result.intrinsics.cx) == (0.8 * width, width / 2)
    assert not result.depth.any()


@pytest.fixture(scope="module")
def walk() -> tuple[Images, NDArray[np.float64]]:
    """Every sixth image of the sample, and their true poses."""
    with open_source(str(SAMPLE), FrameChoice(stride=6)) as source, np.load(SAMPLE.with_suffix(".truth.npz")) as truth:
        small = [np.asarray(cv2.resize(frame.rgb, (256, 192), interpolation=cv2.INTER_AREA)) for frame in source]
        return small, truth["T_world_camera"][::6].astype(np.float64)


def test_known_poses_give_world_and_unit_and_the_back_end_corrects_the_path(
    model: sr.Model, walk: tuple[Images, NDArray[np.float64]]
) -> None:
    images, truth = walk
    known = truth.copy()
    known[:, :3, 3] += np.random.default_rng(0).normal(0, 0.02, (len(known), 3))
    errors = []
    for poses in ("fixed", "prior"):
        with model.stream(poses=poses) as stream:
            for index, (rgb, T) in enumerate(zip(images, known, strict=True)):
                stream.push(rgb, index / 3, pose=T[:3] if index % 7 != 3 else None)
        positions = stream.trajectory.positions
        fit = align(positions, truth[:, :3, 3])
        assert fit.scale == pytest.approx(1, abs=0.012), "24 noisy positions give it within .5 %"
        errors.append(np.linalg.norm(fit.apply(positions) - truth[:, :3, 3], axis=1).mean())
        given = [index for index in range(len(known)) if index % 7 != 3]
        assert (poses == "fixed") == np.allclose(stream.trajectory.poses[given], known[given], atol=1e-6)
    assert errors[1] < 0.6 * errors[0], errors


def test_known_poses_in_other_axes_end_a_stream_with_their_name(
    model: sr.Model, walk: tuple[Images, NDArray[np.float64]]
) -> None:
    images, truth = walk
    stream = model.stream(poses="fixed")
    with pytest.raises(sr.InputError, match="first image has none"):
        stream.push(images[0])
    with pytest.raises(sr.InputError, match="OpenGL's"):
        for rgb, T in zip(images, truth @ np.diag([1.0, -1, -1, 1]), strict=True):
            stream.push(rgb, pose=T)
    with pytest.raises(sr.InputError, match="do not fit: begin another one"):
        stream.push(images[0], pose=truth[0])


def test_a_mapping_that_a_stream_has_not_is_refused(model: sr.Model) -> None:
    with pytest.raises(sr.ConfigError, match="use stream, off"):
        model.stream(mapping="full")  # type: ignore[arg-type]
