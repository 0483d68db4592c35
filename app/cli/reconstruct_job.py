"""A reconstruction as given on the command line, and the name of its result folder."""

import dataclasses
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from stream_recon.app.cli import options as shared
from stream_recon.app.cli.view import ViewerChoice
from stream_recon.configs.errors import ConfigError

if TYPE_CHECKING:
    from stream_recon.app.engine.model_choice import ModelChoice
    from stream_recon.app.sources.frame_choice import FrameChoice
    from stream_recon.app.stages.dense import DenseOptions
    from stream_recon.app.stages.finish import FinishSteps

MAX_NAME = 80
"""Characters of the name of a default result folder; a source's name may be longer than file systems allow."""


def at_terminal() -> bool:
    """Whether a user can press Ctrl-C. Service managers close stdin."""
    return sys.stdin is not None and not sys.stdin.closed and sys.stdin.isatty()


@dataclasses.dataclass(frozen=True)
class ReconstructJob:
    """A reconstruction as given on the command line."""

    spec: str
    """The source; see `open_source`."""
    frames: "FrameChoice"
    model: "ModelChoice"
    view: ViewerChoice | None = None
    output: Path | None = None
    overwrite: bool = False
    resume: bool = False
    keep_depth: Literal["all", "keyframes", "none"] = "all"
    max_disk: str | None = None
    mesh: bool = True
    splat: bool = False
    """Gaussian splats are trained at the end."""
    keep_map: bool = True
    dense_side: int | None = shared.DENSE_SIDE
    """Longer side of dense depth maps; None: none are made."""
    mapping: Literal["full", "stream", "off"] = "full"
    mask_sky: bool = False
    scale_from: str | None = None
    onto: Path | None = None
    reconnect: float = 120.0
    publish: tuple[str, ...] = ()
    """Addresses, see `stream_recon.app.publishing.address`."""
    publish_token: bool = True
    """Other machines need the token of a printed address."""
    on_finished: Callable[[Path], None] = lambda folder: None
    """Called with the complete result, before the viewer stays open."""

    @property
    def recorded(self) -> dict[str, Any]:
        """Options that change the result, for ``run.json``."""
        from stream_recon.app.sources.source import without_password

        # Options added after 0.1 are recorded only where they are used, so that results of 0.1 can be resumed.
        frames = dataclasses.asdict(self.frames)
        for name in ("masks", "topic"):
            if frames[name] is None:
                del frames[name]
        sky = {"mask_sky": True} if self.mask_sky else {}
        return {"source": without_password(self.spec), **frames, "keyframes": self.model.keyframes, **sky}

    @property
    def dense(self) -> "DenseOptions | None":
        """Options of dense depth; None: none is made."""
        from stream_recon.app.stages.dense import DenseOptions

        return None if self.dense_side is None else DenseOptions(self.dense_side, self.model.device)

    @property
    def last_steps(self) -> "FinishSteps":
        """Steps that follow the last frame. Raises ConfigError: options that contradict each other."""
        from stream_recon.app.stages.finish import FinishSteps

        if self.onto is not None and not self.keep_map:
            raise ConfigError("--onto needs the map: leave out --no-map")
        return FinishSteps.parse(
            refine=self.mapping == "full",
            scale_from=self.scale_from,
            mesh=self.mesh,
            onto=self.onto,
            dense=self.dense if self.mapping == "full" else None,
        )


def default_output(spec: str, overwrite: bool) -> Path:
    """``NAME-recon`` in the current folder; where it exists, the next free number unless ``overwrite`` is set."""
    from stream_recon.app.sources.source import ADDRESS

    if ADDRESS.match(spec):
        name = urlsplit(spec).hostname or "stream"
    elif spec.isdecimal() and not Path(spec).exists():
        name = f"camera-{spec}"
    else:
        path = Path(spec).expanduser().resolve()
        name = path.name if _is_folder(path) else path.stem
    base = re.sub(r"[^\w.-]+", "-", name).strip("-.")[:MAX_NAME] or "stream"
    folder, number = Path(f"{base}-recon"), 1
    while folder.exists() and not overwrite:
        number += 1
        folder = Path(f"{base}-recon-{number}")
    return folder


def may_exist(spec: str) -> bool:
    """Whether a source is worth loading the network for; found out without imports."""
    with suppress(OSError, RuntimeError):  # such as a name that is too long, or an unknown user
        return "://" in spec or spec.isdecimal() or Path(spec).expanduser().exists()
    return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:  # such as a name that is too long
        return False
