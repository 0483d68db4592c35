"""Gaussian splats in the viewer: one node of the common scene, which pages show or hide, and the end of a training."""

from collections.abc import Callable
from typing import Any

from stream_recon.app.core.splats import Splats

NODE = "/splats"
MAX_SHOWN = 500_000
"""Most splats sent to clients, at 32 bytes each."""


def add_splats(scene: Any, splats: Splats) -> Any:
    """Add splats to a scene of viser, in place of earlier ones; returns the node."""
    return scene.add_gaussian_splats(
        NODE, splats.means, splats.covariances, splats.rgb, splats.alpha[:, None].clip(0, 1)
    )


class SplatLayer:
    """The splats of the common scene."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._stop: Any = None
        self.count = 0
        """Number of splats that are shown."""
        self.total = 0
        """Number of all splats."""

    def show(self, splats: Splats, most: int | None = None) -> None:
        """Show the most visible splats in place of the last ones. ``most``: their number; None: `MAX_SHOWN`."""
        shown = splats.most_visible(MAX_SHOWN if most is None else most)
        add_splats(self._server.scene, shown)
        self.count, self.total = len(shown), len(splats)

    def offer_stop(self, stop: Callable[[], None] | None) -> None:
        """Show a button that ends a training, or remove it."""
        if self._stop is not None:
            self._stop.remove()
            self._stop = None
        if stop is not None:
            hint = "End the training; the splats so far are kept"
            self._stop = self._server.gui.add_button("Finish splats now", hint=hint, order=3)
            self._stop.on_click(lambda _: stop())
