"""Files at an address of fsspec, such as ``s3://bucket/folder``."""

import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from stream_recon.configs.errors import ConfigError, OutputError, StreamReconError, missing_library

SECRET = re.compile("key|secret|token|passw|credential|sas|connection", re.IGNORECASE)
"""Words in names of environment variables whose values are not shown."""
LOGIN, QUERY = re.compile(r"://[^/\s@]+@"), re.compile(r"(://[^?]*)[?]\S+")
"""Parts of an address that may hold credentials: a name with a password, and a signed query."""


class RemoteFiles:
    """Files at an address. Names are relative to it, with ``/`` between folders. Every method raises OutputError."""

    def __init__(self, address: str) -> None:
        """
        Raises:
            ResourceError: fsspec, or the package that it needs for this address, is not installed.
            ConfigError: an address of an unknown kind.
            OutputError: the address cannot be reached.
        """
        self.address = _without_secrets(address.rstrip("/"))
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise missing_library(self.address, "fsspec") from error
        with self._errors("reach"):
            try:
                fs, base = url_to_fs(address.rstrip("/"))
            except ImportError as error:
                package = re.search(r"install (\w+)", str(error), re.IGNORECASE)
                raise missing_library(self.address, package[1] if package else str(error)) from error
            except ValueError as error:
                reason = _without_secrets(str(error))
                raise ConfigError(f"{self.address} is no address that fsspec knows: {reason}") from error
        self._fs: Any = fs
        self._base = str(base).rstrip("/")

    @property
    def single_process(self) -> bool:
        """Whether only this process sees the files."""
        protocol = self._fs.protocol
        return "memory" in ((protocol,) if isinstance(protocol, str) else protocol)

    def make_folder(self) -> None:
        """Create the folder at the address, where the store has folders."""
        with self._errors("write"):
            self._fs.makedirs(self._base, exist_ok=True)

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes in bytes of all files beneath ``folder``, by names relative to it; empty if there is none."""
        base = self._path(folder)
        with self._errors("read"):
            # A cached listing may lack what other machines wrote since.
            self._fs.invalidate_cache()
            entries = self._fs.find(base, detail=True)
        # Some stores list a file as its own content.
        below = {str(path): info for path, info in entries.items() if str(path).startswith(base + "/")}
        return {path[len(base) + 1 :]: int(info["size"]) for path, info in below.items()}

    def read(self, name: str) -> bytes | None:
        """Content of a file; None if there is no such file."""
        with self._errors("read"):
            self._fs.invalidate_cache()
            try:
                return bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """A file, for reading."""
        with self._errors("read"), self._fs.open(self._path(name), "rb") as file:
            yield file

    def write(self, name: str, data: bytes) -> None:
        with self._errors("write"):
            self._fs.pipe_file(self._path(name), data)

    def upload(self, source: Path, folder: str, names: Sequence[str]) -> None:
        """Copy files of the local folder ``source`` into ``folder``."""
        targets = [self._path(folder, name) for name in names]
        with self._errors("write"):
            for parent in {target.rpartition("/")[0] for target in targets}:
                self._fs.makedirs(parent, exist_ok=True)
            self._fs.put([str(source / name) for name in names], targets)

    def download(self, folder: str, names: Sequence[str], target: Path) -> None:
        """Copy files of ``folder`` into the local folder ``target``."""
        for parent in {(target / name).parent for name in names}:
            parent.mkdir(parents=True, exist_ok=True)
        with self._errors("read"):
            self._fs.get([self._path(folder, name) for name in names], [str(target / name) for name in names])

    def remove(self, names: Collection[str]) -> None:
        """Remove files in this order; missing ones are skipped."""
        with self._errors("write"):
            for name in names:
                # One by one: lists are read as glob patterns, and names may contain brackets.
                with suppress(FileNotFoundError):
                    self._fs.rm_file(self._path(name))

    def _path(self, *names: str) -> str:
        return "/".join([self._base, *(name for name in names if name)])

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except StreamReconError:
            raise
        except Exception as error:
            # Stores raise errors of their client libraries, many of which are no OSError.
            reason = _without_secrets(" ".join(str(error).split())) or "no reason given"
            raise OutputError(f"cannot {what} {self.address}: {type(error).__name__}: {reason}") from error


def _without_secrets(text: str) -> str:
    """A text without credentials: libraries quote addresses that they have signed, and keys that a store refuses."""
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) > 5:  # shorter ones are words of other texts
            text = text.replace(value, "***")
    return QUERY.sub(r"\1?***", LOGIN.sub("://***@", text))
