"""The client of a server's streams, against the real server with an engine without a network."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest

import stream_recon as sr
from stream_recon.app.sources.frame_choice import FrameChoice
from stream_recon.app.sources.source import open_source
from stream_recon.app.web.engine_process import ENGINE
from stream_recon.app.web.limits import WebLimits
from tests.app.api.test_stream import SAMPLE
from tests.app.web.fake_session_engine import DEADLY, SIZE, UNWANTED
from tests.app.web.serving import listening

IMAGE = np.zeros((*SIZE, 3), np.uint8)


class CuttingProxy:
    """Passes connections on to a port, and cuts them."""

    def __init__(self, port: int) -> None:
        self._target, self._open = port, list[socket.socket]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self, port: int | None = None) -> None:
        """End all connections, as a network does; later ones go to ``port``."""
        self._target = port or self._target
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        self._open.clear()

    def close(self) -> None:
        self._listener.close()
        self.cut()


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with listening(tmp_path_factory.mktemp("served") / "data", WebLimits(sessions=2)) as found:
        yield found


@pytest.fixture
def proxy(port: int) -> Iterator[CuttingProxy]:
    made = CuttingProxy(port)
    yield made
    made.close()


def results_of(items: list[sr.RemoteResult | sr.Revision]) -> list[sr.RemoteResult]:
    return [item for item in items if isinstance(item, sr.RemoteResult)]


def test_a_stream_on_a_server_gives_results_and_revisions(port: int) -> None:
    camera = sr.Camera(100, 100, 64, 48, np.zeros(4).tolist(), size=(128, 96))
    with sr.connect(f"http://127.0.0.1:{port}/", camera, include=["depth", "confidence"]) as stream:
        items = [item for at in range(4) for item in stream.push(IMAGE, at / 10)]
        with pytest.raises(sr.InputError, match="rig=FILE"):
            stream.push([IMAGE, IMAGE])  # type: ignore[arg-type]
        items += stream.finish()
        assert stream.finish() == []
        with pytest.raises(sr.InputError, match="finished"):
            stream.push(IMAGE)
    results = results_of(items)
    assert [(each.index, each.timestamp, each.T_world_camera[0, 3]) for each in results] == [
        (0, 0.0, 0.0), (1, 0.1, 1.0), (2, 0.2, 2.0), (3, 0.3, 3.0),
    ]  # fmt: skip
    assert results[3].state == "tracking" and results[0].intrinsics == sr.Intrinsics(100, 100, 64, 48)
    assert results[0].depth is not None and np.array_equal(results[0].depth, np.full((4, 6), 2.0))
    assert results[0].confidence is not None and np.allclose(results[0].confidence, 2 / 3, atol=1e-3)
    revised = [item.frames[0] for item in items if isinstance(item, sr.Revision)]
    assert [(each.index, each.T_world_camera[0, 3], each.depth_scale) for each in revised] == [
        (0, -3, 1.5),
        (0, -4, 1.5),
    ]


def test_a_cut_connection_loses_and_repeats_nothing(proxy: CuttingProxy) -> None:
    items: list[sr.RemoteResult | sr.Revision] = []
    with sr.connect(f"http://127.0.0.1:{proxy.port}", mapping="off") as stream:
        for at in range(6):
            if at in (1, 3, 4):
                cutter = threading.Timer(0.05 * at, proxy.cut)  # while the engine is at work, and the client waits
                cutter.start()
            items += stream.push(IMAGE, at / 10)
        proxy.cut()
        items += stream.finish()
    assert [each.index for each in results_of(items)] == list(range(6))
    assert sum(isinstance(item, sr.Revision) for item in items) == 3


def test_a_stream_goes_on_at_another_server(tmp_path: Path) -> None:
    """As where a server was killed: what was taken without a result is sent again, in a new segment."""
    items: list[sr.RemoteResult | sr.Revision] = []
    with listening(tmp_path / "first") as first, listening(tmp_path / "second") as second:
        proxy = CuttingProxy(first)
        with sr.connect(f"http://127.0.0.1:{proxy.port}", mapping="off") as stream:
            for _ in range(3):
                items += stream.push(IMAGE)
            proxy.cut(second)  # the last image was taken, and has no result
            items += stream.push(IMAGE)
            threading.Timer(0.1, proxy.cut).start()
            items += stream.push(IMAGE)
            items += stream.finish()
        proxy.close()
    results = results_of(items)
    assert [each.index for each in results] == list(range(5))
    old, new = ({each.T_world_camera[1, 3] for each in results[a:b]} for a, b in ((0, 2), (2, 5)))
    assert len(old) == len(new) == 1 and old != new, "two engines"
    assert {each.segment for each in results[:2]} & {each.segment for each in results[2:]} == set()
    times = [each.timestamp for each in results]
    assert times == sorted(set(times))


def test_refusals_are_errors_of_one_line(port: int) -> None:
    address = f"http://127.0.0.1:{port}"
    with sr.connect(address) as stream:
        with pytest.raises(sr.InputError, match="another size"):
            stream.push(np.zeros((*UNWANTED, 3), np.uint8))
            stream.push(IMAGE)
        with pytest.raises(sr.InputError, match="JPEG"):
            stream.push(b"GIF89a")
            stream.push(IMAGE)
        assert stream.push(IMAGE) is not None
        with sr.connect(address), pytest.raises(sr.ResourceError, match="2 sessions are open"):
            sr.connect(address)
    with sr.connect(address) as stream, pytest.raises(sr.ResourceError, match="engine"):
        stream.push(np.zeros((*DEADLY, 3), np.uint8))
        stream.finish()


@pytest.mark.parametrize(
    ("url", "error"),
    [("127.0.0.1", sr.ConfigError), ("rtsp://camera", sr.ConfigError), ("http://127.0.0.1:1/", sr.ResourceError)],
)
def test_what_is_no_server_is_told(url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        sr.connect(url)


def test_a_configuration_that_is_none_is_refused(port: int) -> None:
    with (
        pytest.raises(sr.ConfigError, match="include"),
        sr.connect(f"http://127.0.0.1:{port}", include=["rgb"]) as stream,
    ):  # type: ignore[list-item]
        stream.push(IMAGE)


@pytest.mark.slow
def test_a_server_gives_what_a_stream_here_gives(tmp_path: Path) -> None:
    with open_source(str(SAMPLE), FrameChoice(max_frames=10)) as source:
        small = [cv2.resize(frame.rgb, (128, 96), interpolation=cv2.INTER_AREA) for frame in source]
    jpegs = [cv2.imencode(".jpg", image[..., ::-1])[1] for image in small]
    here: list[sr.FrameResult | sr.Revision] = []
    with sr.load_model(device="cpu").stream() as local:
        for jpeg in jpegs:
            here += local.push(np.ascontiguousarray(cv2.imdecode(jpeg, cv2.IMREAD_COLOR)[..., ::-1]))
        here += local.finish()
    there: list[sr.RemoteResult | sr.Revision] = []
    with listening(tmp_path / "data", engine=ENGINE) as port, sr.connect(f"http://127.0.0.1:{port}") as stream:
        for jpeg in jpegs:
            there += stream.push(jpeg.tobytes())
        there += stream.finish()
    assert [type(item) is sr.Revision for item in here] == [type(item) is sr.Revision for item in there]
    poses = [item.T_world_camera for item in here if isinstance(item, sr.FrameResult)]
    assert np.allclose([item.T_world_camera for item in results_of(there)], poses, atol=1e-5)


def test_images_that_the_server_keeps(proxy: CuttingProxy) -> None:
    with pytest.raises(sr.ConfigError, match="use keep"):
        sr.connect(f"http://127.0.0.1:{proxy.port}/", mapping="off", keep="Hall")
    with sr.connect(f"http://127.0.0.1:{proxy.port}/", keep="Hall") as stream:
        assert stream.name == "Hall-recon"
        items = [*stream.push(IMAGE), *stream.push(IMAGE)]
        proxy.cut()
        items += [*stream.push(IMAGE), *stream.finish()]
    results = [item for item in items if isinstance(item, sr.RemoteResult)]
    assert [(each.index, each.T_world_camera[0, 3]) for each in results] == [(0, 0), (1, 1), (2, 2)]
    assert results[2].depth is None
