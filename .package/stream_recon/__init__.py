"""Camera poses, depth and surfaces from video, frame by frame: ``import stream_recon as sr``.

``sr.reconstruct`` turns a video into a result folder, ``sr.open_result`` reads one, and ``sr.load_model().stream()``
takes images one at a time; ``sr.connect`` sends them to a server. ``scripts/examples`` has short programs. Names are
imported on first use: ``import stream_recon`` loads neither torch nor OpenCV.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_recon.app.api.camera import Camera
    from stream_recon.app.api.frame import ResultFrame, as_arrays
    from stream_recon.app.api.model import Model, load_model
    from stream_recon.app.api.reconstruct import reconstruct
    from stream_recon.app.api.remote import RemoteResult, RemoteStream, connect
    from stream_recon.app.api.result import Result, open_result
    from stream_recon.app.api.stream import Stream
    from stream_recon.app.api.trajectory import Trajectory
    from stream_recon.app.core.cancel import Cancel, Cancelled
    from stream_recon.app.core.types import FrameResult, FrameRevision, Intrinsics, Revision
    from stream_recon.app.core.views import ResultListener
    from stream_recon.app.engine.keyframes import Decision, KeyframePolicy
    from stream_recon.app.result.verdict import Verdict
    from stream_recon.configs.errors import (
        ConfigError,
        InputError,
        OutputError,
        ResourceError,
        SourceLostError,
        StreamReconError,
        WeightsError,
    )

__all__ = [
    "Camera",
    "Cancel",
    "Cancelled",
    "ConfigError",
    "Decision",
    "FrameResult",
    "FrameRevision",
    "InputError",
    "Intrinsics",
    "KeyframePolicy",
    "Model",
    "OutputError",
    "RemoteResult",
    "RemoteStream",
    "ResourceError",
    "Result",
    "ResultFrame",
    "ResultListener",
    "Revision",
    "SourceLostError",
    "Stream",
    "StreamReconError",
    "Trajectory",
    "Verdict",
    "WeightsError",
    "__version__",
    "as_arrays",
    "connect",
    "load_model",
    "open_result",
    "reconstruct",
]

__version__ = "0.3.0"

_NAMES = {
    "app.api.camera": "Camera",
    "app.api.frame": "ResultFrame as_arrays",
    "app.api.model": "Model load_model",
    "app.api.reconstruct": "reconstruct",
    "app.api.remote": "RemoteResult RemoteStream connect",
    "app.api.result": "Result open_result",
    "app.api.stream": "Stream",
    "app.api.trajectory": "Trajectory",
    "app.core.cancel": "Cancel Cancelled",
    "app.core.types": "FrameResult FrameRevision Intrinsics Revision Frame",
    "app.core.views": "ResultListener",
    "app.engine.engine": "load_engine",
    "app.engine.keyframes": "Decision KeyframePolicy",
    "app.result.folder": "read_result",
    "app.result.verdict": "Verdict",
    "configs.errors": "ConfigError InputError OutputError ResourceError SourceLostError StreamReconError WeightsError",
}
"""Modules and their public names. `Frame`, `load_engine` and `read_result` are names of 0.2, which 0.3 still reads."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
