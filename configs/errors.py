"""The one family of errors meant for users. The command line turns them into one line and exit code 2."""


class StreamReconError(Exception):
    """Something a user can act on. The message says what is wrong and what to do, in one line."""


class InputError(StreamReconError):
    """A video, folder, camera, stream or dataset that cannot be read."""


class OutputError(StreamReconError):
    """A result folder that cannot be written or read."""


class WeightsError(StreamReconError):
    """A checkpoint that is missing, unreadable or of another network."""


class ConfigError(StreamReconError):
    """A preset or an option with an impossible value."""


class ResourceError(StreamReconError):
    """A device, a backend, a port or memory that is not there."""
