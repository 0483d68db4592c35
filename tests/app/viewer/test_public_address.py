"""The viewer behind a proxy: the address that is given, and the sample for nginx of the README."""

import http.client
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from stream_recon.app.cli.console import PlainConsole
from stream_recon.app.cli.view import ViewerChoice
from stream_recon.app.viewer.viewer import Viewer
from stream_recon.configs.errors import ConfigError
from stream_recon.configs.schema import PointsConfig
from tests.app.viewer.clients import PROTOCOL

README = Path(__file__).parents[3] / "app" / "viewer" / "README.md"
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def get(port: int, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def viewer() -> Iterator[Viewer]:
    with Viewer(PointsConfig(), port=0, public="https://example.org/recon/") as running:
        yield running


def test_the_public_address_is_printed_with_a_token(viewer: Viewer) -> None:
    assert re.fullmatch(r"https://example\.org/recon/\?token=[\w-]{20,}", viewer.url) and viewer.is_open


def test_the_public_name_and_origin_are_admitted_with_the_token_alone(viewer: Viewer) -> None:
    query = viewer.url.split("/recon/")[1]
    assert get(viewer.port, f"/{query}", Host="example.org").status == 200
    page = get(viewer.port, f"/{query}", Host="example.org", Origin="https://example.org")
    assert page.status == 200 and "; Secure" in str(page.getheader("Set-Cookie"))
    # A proxy that does not pass on the host.
    assert get(viewer.port, f"/{query}", Origin="https://example.org").status == 200
    assert get(viewer.port, "/", Host="example.org").status == 403
    refused = get(viewer.port, f"/{query}", Host="example.org", Origin="https://evil.org")
    assert refused.status == 403 and b"--public-address" in refused.read()


def test_without_a_token_only_the_public_name_is_added() -> None:
    with Viewer(PointsConfig(), port=0, public="http://example.org", token=False) as viewer:
        assert viewer.url == "http://example.org"
        assert get(viewer.port, "/", Host="example.org").status == 200
        assert get(viewer.port, "/", Host="evil.org").status == 403


@pytest.mark.parametrize(
    "text", ["example.org", "ftp://example.org", "https://example.org/?a=1", "https://me@host", ""]
)
def test_what_is_no_public_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--public-address"):
        ViewerChoice("127.0.0.1", 0, keep_open=False, public=text).open(
            PointsConfig(), PlainConsole(), PlainConsole(stderr=True)
        )


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_the_sample_for_nginx_serves_the_viewer(tmp_path: Path) -> None:
    (sample,) = re.findall(r"```nginx\n(.*?)```", README.read_text(), re.DOTALL)
    port = free_port()
    address = f"http://127.0.0.1:{port}/recon/"
    with Viewer(PointsConfig(), port=0, public=address) as viewer:
        served = sample.replace("127.0.0.1:8080", f"127.0.0.1:{viewer.port}")
        assert served != sample
        kinds = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
        (tmp_path / "nginx.conf").write_text(
            f"daemon off;\nmaster_process off;\npid {tmp_path}/pid;\nerror_log {tmp_path}/error.log;\nevents {{}}\n"
            f"http {{\naccess_log off;\nclient_body_temp_path {tmp_path}/body;\n{kinds}"
            f"server {{\nlisten 127.0.0.1:{port};\n{served}}}\n}}\n"
        )
        command = [str(NGINX), "-p", str(tmp_path), "-e", f"{tmp_path}/error.log", "-c", str(tmp_path / "nginx.conf")]
        process = subprocess.Popen(command)
        try:
            wait_for_port(port, process)
            path = viewer.url.removeprefix(f"http://127.0.0.1:{port}")
            page = get(port, path)
            assert page.status == 200 and b"<html" in page.read()
            cookie = str(page.getheader("Set-Cookie")).split(";")[0]
            headers = {"Cookie": cookie}
            with connect(
                address.replace("http", "ws"),
                origin=f"http://127.0.0.1:{port}",  # type: ignore[arg-type]
                subprotocols=[PROTOCOL],  # type: ignore[list-item]
                additional_headers=headers,
                max_size=None,
            ) as client:
                assert len(client.recv(timeout=10)) > 0
            with pytest.raises(InvalidStatus, match="403"):
                connect(address.replace("http", "ws"), subprotocols=[PROTOCOL])  # type: ignore[list-item]
            assert get(port, "/recon/").status == 403
        finally:
            process.terminate()
            process.wait(10)


def wait_for_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        assert process.poll() is None, "nginx ended"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError("nginx does not listen")
