"""Files under an address that fsspec understands: ``s3://bucket/folder`` and the like."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stream_recon.app.batch.checksums import stream_digest
from stream_recon.configs.errors import ConfigError, OutputError, ResourceError, StreamReconError


class RemoteFiles:
    """A folder. Names are relative to it, with ``/`` between folders. Every method raises OutputError."""

    def __init__(self, address: str) -> None:
        """
        Raises:
            ResourceError: fsspec, or the package that it needs for this address, is not installed.
            ConfigError: an address of an unknown kind.
            OutputError: the address cannot be reached.
        """
        self.address = address.rstrip("/")
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise ResourceError(f"{address} needs fsspec: pip install 'stream-recon[ray]'") from error
        with self._errors("reach"):
            try:
                fs, base = url_to_fs(self.address)
            except ImportError as error:
                raise ResourceError(f"{address} needs a further package: {error}") from error
            except ValueError as error:
                raise ConfigError(f"{address} is no address that fsspec knows: {error}") from error
        self._fs: Any = fs
        self._base = str(base).rstrip("/")

    @property
    def of_one_process(self) -> bool:
        """Whether other processes see nothing of it."""
        protocol = self._fs.protocol
        return "memory" in ((protocol,) if isinstance(protocol, str) else protocol)

    def make(self) -> None:
        """Make the folder itself, where there is such a thing."""
        with self._errors("write"):
            self._fs.makedirs(self._base, exist_ok=True)

    def sizes(self, folder: str) -> dict[str, int]:
        """Sizes in bytes of all files beneath ``folder``, by their names relative to it; empty if there is none."""
        base = self._path(folder)
        with self._errors("read"):
            # What other machines wrote meanwhile may be missing in a listing that was kept.
            self._fs.invalidate_cache()
            found = self._fs.find(base, detail=True)
        # Some stores list a file as the content of itself.
        inside = {str(path): info for path, info in found.items() if str(path).startswith(base + "/")}
        return {path[len(base) + 1 :]: int(info["size"]) for path, info in inside.items()}

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        with self._errors("read"):
            self._fs.invalidate_cache()
            try:
                return bytes(self._fs.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def digest(self, name: str, size: int, known: str) -> str:
        """Of the content of a file of so many bytes, in the way of a known one; see `file_digest`."""
        with self._errors("read"), self._fs.open(self._path(name), "rb") as file:
            return stream_digest(file, size, known)

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file."""
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
        """Remove files, in their order; those that are gone already do not matter."""
        with self._errors("write"):
            for name in names:
                # One by one: lists are taken as patterns, and names may hold brackets.
                try:
                    self._fs.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def _path(self, *names: str) -> str:
        return "/".join([self._base, *(name for name in names if name)])

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except StreamReconError:
            raise
        except Exception as error:
            # Each kind of store raises errors of its own client library, many of them no OSError.
            reason = " ".join(str(error).split()) or "no reason given"
            raise OutputError(f"cannot {what} {self.address}: {type(error).__name__}: {reason}") from error
