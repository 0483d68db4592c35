"""Errors for users. The command line prints them in one line; `console` has their exit codes."""


class StreamReconError(Exception):
    """An error that a user can act on. Its message is one line: what is wrong, and what to do."""


class InputError(StreamReconError):
    """A video, folder, camera, stream or dataset that cannot be read."""


class SourceLostError(InputError):
    """A live source that ended early and did not return. What came is reconstructed."""


class OutputError(StreamReconError):
    """A result folder that cannot be written or read."""


class NoSurfaceError(OutputError):
    """A result in which no surface is visible, so that it has no mesh."""


class WeightsError(StreamReconError):
    """A checkpoint that is missing, unreadable or of another network."""


class ConfigError(StreamReconError):
    """A preset or an option with an impossible value."""


class ResourceError(StreamReconError):
    """A device, back end, port or memory that is not available."""


class PortInUseError(ResourceError):
    """A port that another program listens on."""


def missing_library(what: str, *packages: str, otherwise: str = "") -> ResourceError:
    """Error of ``what`` (an option or command) where packages are not installed; says how to install all of them.

    ``otherwise``: what to do without them.
    """
    *first, last = packages
    names = f"{', '.join(first)} and {last}" if first else last
    return ResourceError(f"{what} needs {names}: {pip_install(*packages)}{otherwise and f', or {otherwise}'}")


def pip_install(*packages: str) -> str:
    """Command that installs packages. No extra of this package: it may come from a folder, and is on no index."""
    return f"pip install {' '.join(packages)}"
