"""Command ``serve``: a web page to upload videos, scan with a phone, look at results and take them away."""

import shutil
from pathlib import Path
from typing import Annotated

from stream_recon.app.cli.console import DONE, PlainConsole, reported
from stream_recon.app.cli.options import Port, PublicAddress, Token, option
from stream_recon.configs.errors import missing_library
from stream_recon.configs.schema import parse_size


@reported
def serve_command(
    data: Annotated[Path, option("Folder of the results; uploads and the queue are kept in it, too.")] = Path(),
    host: Annotated[str, option("Address to listen on; 0.0.0.0 admits other machines.")] = "127.0.0.1",
    port: Port = None,
    jobs: Annotated[int, option("Reconstructions at a time.", min=1, max=64)] = 1,
    quota: Annotated[
        str | None, option("Size that the folder may have, such as 200GB; then uploads and jobs are refused.")
    ] = None,
    tls: Annotated[
        bool, option("Encrypt with a certificate of its own. Phones need it for their camera.", "--tls")
    ] = False,
    cert: Annotated[Path | None, option("Certificate file (PEM), with --key.")] = None,
    key: Annotated[Path | None, option("Key file (PEM) of --cert.")] = None,
    token: Token = True,
    public_address: PublicAddress = None,
) -> int:
    """Serve a page for people: upload videos, scan with a phone, look at results, export them.

    All results in the folder are listed, also those of the command line. Jobs wait in a queue, which goes on after a
    restart. Ctrl-C ends the server. Where stderr is no terminal, its log is in lines of JSON.
    """
    try:
        from stream_recon.app.web.monitoring import log_as_json
        from stream_recon.app.web.server import ServeOptions, Server, qr_code
    except ImportError as error:
        raise missing_library("serve", "starlette", "uvicorn", "segno", "cryptography") from error

    out, err = PlainConsole(soft_wrap=True), PlainConsole(stderr=True, soft_wrap=True)
    if not err.is_terminal:
        log_as_json()
    size = None if quota is None else parse_size(quota, "--quota")
    server = Server(ServeOptions(data, host, port, jobs, tls, cert, key, token, size, public_address))
    out.print(f"page: {server.url}")
    if public_address is not None:
        out.print(f"listens on {host} port {server.port}")
    out.print(f"results: {data.resolve()} ({shutil.disk_usage(data).free / 1e9:.0f} GB free)")
    if server.users is not None:
        out.print(f"users: those that {server.users.header} names, from {', '.join(map(str, server.users.proxies))}")
    if server.is_open:
        scan = server.url.replace("/?", "/scan?") if "/?" in server.url else f"{server.url}scan"
        code = qr_code(scan) if out.is_terminal else None
        out.print(f"scan with a phone: {scan}")
        if code:
            out.print(code)
        if not server.has_tls and not server.url.startswith("https"):
            err.print("warning: without --tls it is unencrypted, and phones do not give pages their camera")
        if not token and server.users is None:
            err.print("warning: everyone who can reach this machine can use it (--no-token)")
    server.run()
    return DONE
