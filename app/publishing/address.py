"""Addresses of ``--publish``: what they mean, and the sinks that they open."""

import math
import ssl
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from stream_recon.app.publishing.sink import Sink
from stream_recon.app.sources.rmw_zenoh import DEFAULT_ENDPOINT, ros_domain
from stream_recon.configs.errors import ConfigError

FORMS = "foxglove[://HOST:PORT], zenoh[://HOST:PORT] or FILE.mcap"
OPTIONS = {"foxglove": frozenset({"cert", "key", "mount"}), "zenoh": frozenset({"domain", "mount"})}
"""Options of each kind of address."""


@dataclass(frozen=True)
class PublishAddress:
    """An address, taken apart. ``kind``: ``foxglove``, ``zenoh`` or ``mcap``."""

    kind: str
    host: str | None = None
    port: int | None = None
    path: Path | None = None
    options: dict[str, str] = field(default_factory=dict)

    @property
    def mount(self) -> tuple[float, ...] | None:
        """Position and roll, pitch, yaw (rad) of the camera on ``base_link``; None: not given."""
        text = self.options.get("mount")
        if text is None:
            return None
        try:
            numbers = tuple(float(part) for part in text.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) != 6 or not all(map(math.isfinite, numbers)):
            raise ConfigError(f"mount={text}: use x,y,z,roll,pitch,yaw in metres and rad")
        return numbers


def parse_address(text: str) -> PublishAddress:
    """Take an address apart. Raises ConfigError."""
    if text.lower().endswith(".mcap") and "://" not in text:
        return PublishAddress("mcap", path=Path(text).expanduser())
    head, _, query = text.partition("?")
    kind, _, location = head.partition("://")
    accepted = OPTIONS.get(kind.lower())
    if accepted is None:
        raise ConfigError(f"--publish {text}: use {FORMS}")
    try:
        parts = urlsplit(f"//{location}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, -1
    if port == -1 or (parts.path.strip("/") or parts.username):
        raise ConfigError(f"--publish {text}: after :// comes HOST or HOST:PORT")
    options = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(options) - accepted)
    if unknown:
        raise ConfigError(f"--publish {text}: {kind} has no option {unknown[0]}; it has {', '.join(sorted(accepted))}")
    address = PublishAddress(kind.lower(), host, port, None, options)
    assert address.mount is None or address.mount
    if kind.lower() == "zenoh":
        ros_domain(options.get("domain"))
    return address


def mount_of(addresses: Sequence[PublishAddress]) -> tuple[float, ...]:
    """Mount of the camera that the addresses state; zeros without one. Raises ConfigError where they differ."""
    mounts = {address.mount for address in addresses} - {None}
    if len(mounts) > 1:
        raise ConfigError("--publish: addresses state different mounts of one camera")
    return next((mount for mount in mounts if mount is not None), (0.0,) * 6)


def open_sinks(addresses: Sequence[PublishAddress], *, token: bool = True) -> list[Sink]:
    """Open all addresses, or none where one fails. Raises StreamReconError."""
    sinks: list[Sink] = []
    with ExitStack() as opened:
        for address in addresses:
            sinks.append(_open(address, token=token))
            opened.callback(sinks[-1].close)
        opened.pop_all()
    return sinks


def _open(address: PublishAddress, *, token: bool) -> Sink:
    if address.path is not None:
        from stream_recon.app.publishing.mcap_sink import McapSink

        return McapSink(address.path)
    if address.kind == "zenoh":
        from stream_recon.app.publishing.zenoh_sink import ZenohSink

        return ZenohSink(_endpoint(address), ros_domain(address.options.get("domain")))
    from stream_recon.app.publishing.foxglove_server import DEFAULT_PORT, FoxgloveSink

    port = DEFAULT_PORT if address.port is None else address.port
    return FoxgloveSink(address.host or "127.0.0.1", port, token=token, tls=_tls(address))


def _endpoint(address: PublishAddress) -> str:
    default_port = DEFAULT_ENDPOINT.rpartition(":")[2]
    if address.host is None:
        return DEFAULT_ENDPOINT
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port or default_port}"


def _tls(address: PublishAddress) -> ssl.SSLContext | None:
    """Certificate and key of a server; None where none are given. Raises ConfigError."""
    cert, key = address.options.get("cert"), address.options.get("key")
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise ConfigError("--publish foxglove: cert and key go together")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--publish foxglove: {cert} and {key} are no certificate and key: {error}") from error
    return context
