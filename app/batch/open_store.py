"""From what the user wrote to a `Store`."""

import re
from pathlib import Path

from stream_recon.app.batch.remote_store import RemoteStore
from stream_recon.app.batch.store import LocalStore, Store

ADDRESS = re.compile(r"([\w+.-]+::)*[\w+.-]{2,}://")
"""``s3://…`` or a chain such as ``simplecache::s3://…``."""
LOCAL_ADDRESS = re.compile(r"(file|local)://", re.IGNORECASE)


def open_store(place: str) -> Store:
    """A folder, or an address of fsspec.

    Raises:
        ResourceError: a package that the address needs is not installed.
        ConfigError: an address of an unknown kind.
        OutputError: the address cannot be reached.
    """
    local = LOCAL_ADDRESS.match(place)
    if local is not None:
        place = place[local.end() :]
    elif ADDRESS.match(place):
        return RemoteStore(place)
    return LocalStore(Path(place).expanduser().absolute())
