"""A real server for tests of the web page, and a connection that can be cut."""

import contextlib
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FAST_CLOCK = """
import asyncio, time
asyncio.SelectorEventLoop.time = lambda loop: {} * time.monotonic()
from stream_recon.app.web import engine_process
engine_process.ENGINE = {} or engine_process.ENGINE
from stream_recon.app.cli.main import main
main()
"""


class ServerProcess:
    """``stream-recon serve`` in a process."""

    def __init__(self, data: Path, *options: str, pace: int = 1, engine: Sequence[str] = ()) -> None:
        """``pace``: of the server's clock, so that its limits of time come sooner; ``engine``: of sessions."""
        is_real = pace == 1 and not engine
        program = ["-m", "stream_recon"] if is_real else ["-c", FAST_CLOCK.format(pace, tuple(engine))]
        words = [sys.executable, *program, "serve", "--data", str(data), "--port", "0", *options]
        self.began = time.monotonic()
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.match(r"page: (https?)://[^:/]+:(\d+)/(\?\S+)?", line)
        assert found, line
        self.port = int(found[2])
        self.url = f"{found[1]}://127.0.0.1:{found[2]}/{found[3] or ''}"

    def __enter__(self) -> "ServerProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()


class Relay:
    """A TCP connection to a port that can be cut, slowed and restored."""

    def __init__(self, port: int, bytes_per_s: float = 1e9) -> None:
        self._target, self._pace = port, bytes_per_s
        self._open, self.cut_off, self.passed = True, False, 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections, and refuse new ones until `restore`."""
        self.cut_off = True
        for pair in self._pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def restore(self) -> None:
        self.cut_off = False

    def close(self) -> None:
        self._open = False
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while self._open:
            try:
                near, _ = self._listener.accept()
                if self.cut_off:
                    near.close()
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                continue
            self._pairs.append((near, far))
            threading.Thread(target=self._pass, args=(near, far), daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), near, far:
            while True:
                ready, _, _ = select.select([near, far], [], [], 60)
                for end in ready:
                    data = end.recv(32768)
                    if not data:
                        return
                    if end is near:
                        self.passed += len(data)
                        time.sleep(len(data) / self._pace)
                    (far if end is near else near).sendall(data)


def until(found: Callable[[], Any], seconds: float = 60.0, what: str = "it") -> Any:
    """Wait for a true value; the browser's errors of a moment count as none."""
    end = time.monotonic() + seconds
    while True:
        try:
            value = found()
        except Exception as error:  # noqa: BLE001  # an element that is being replaced
            value, what = None, f"{what} ({error})"[:500]
        if value:
            return value
        assert time.monotonic() < end, f"{what} did not happen in {seconds:.0f} s"
        time.sleep(0.2)
