"""Errors for users. The command line prints them in one line and exits with code 2."""


class StreamReconError(Exception):
    """An error that a user can act on. Its message is one line: what is wrong, and what to do."""


class InputError(StreamReconError):
    """A video, folder, camera, stream or dataset that cannot be read."""


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
