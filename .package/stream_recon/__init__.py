"""Camera poses, depth and a live 3D point cloud from a video, frame by frame.

The names below are the Python interface. They are imported on first use: the command line starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stream_recon.app.core.types import Frame, FrameResult
    from stream_recon.app.engine.engine import load_engine
    from stream_recon.app.run.pipeline import reconstruct
    from stream_recon.app.result.folder import read_result

__all__ = ["Frame", "FrameResult", "__version__", "load_engine", "read_result", "reconstruct"]

__version__ = "0.3.0"

_MODULES = {
    "Frame": "stream_recon.app.core.types",
    "FrameResult": "stream_recon.app.core.types",
    "load_engine": "stream_recon.app.engine.engine",
    "read_result": "stream_recon.app.result.folder",
    "reconstruct": "stream_recon.app.run.pipeline",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
