"""A loaded network, which several streams may share."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Literal, get_args

from stream_recon.app.api.camera import Camera
from stream_recon.app.api.options import chosen
from stream_recon.app.api.stream import Stream
from stream_recon.app.core.process import memory_errors
from stream_recon.app.core.views import ResultListener
from stream_recon.app.engine.keyframes import KeyframePolicy
from stream_recon.app.engine.model_choice import ModelChoice
from stream_recon.configs.schema import AttentionChoice, CacheChoice, DeviceChoice, PrecisionChoice


def load_model(
    preset: str | Path = "small",
    weights: str | Path | None = None,
    device: DeviceChoice = "auto",
    attention: AttentionChoice = "auto",
    cache: CacheChoice = "full",
    precision: PrecisionChoice = "auto",
) -> "Model":
    """A network, loaded once for any number of streams; the options are those of the command line.

    Raises ConfigError, WeightsError, ResourceError.
    """
    chosen("device", device, get_args(DeviceChoice))
    chosen("attention", attention, get_args(AttentionChoice))
    chosen("cache", cache, get_args(CacheChoice))
    chosen("precision", precision, get_args(PrecisionChoice))
    file = None if weights is None else Path(weights)
    return Model(ModelChoice(str(preset), file, device, attention, cache=cache, precision=precision))


class Model:
    """A network with its weights on a device; `load_model` makes it. Its streams share the weights."""

    def __init__(self, choice: ModelChoice) -> None:
        self._choice = choice
        with memory_errors():
            self._loaded = choice.load_model()
        self._lock = Lock()

    @property
    def device(self) -> str:
        """Where the network runs, such as ``cpu`` or ``cuda:0``."""
        return str(self._loaded.network.image_mean.device)

    @property
    def precision(self) -> str:
        """Number type of its matrices: ``fp32``, ``bf16`` or ``int8``."""
        return self._loaded.precision

    def stream(
        self,
        camera: Camera | None = None,
        mapping: Literal["stream", "off"] = "stream",
        keyframes: str | int | KeyframePolicy | None = None,
        listeners: Iterable[ResultListener] = (),
        poses: Literal["prior", "fixed"] = "prior",
    ) -> Stream:
        """A new stream of images with a state of its own; there may be several at a time, in any threads.

        Args:
            camera: the images' known camera, by which they are undistorted; None: it is estimated.
            mapping: ``stream``: poses of the SLAM back end, which are revised later; ``off``: those of the network.
            keyframes: ``flow``, ``every``, a number N for every N-th frame, or an own policy, which one stream uses;
                None: the preset's.
            listeners: get each result and each revision before `Stream.push` returns them.
            poses: those that are pushed with images ``prior``: take the place of the network's, and the back end
                corrects them; ``fixed``: stay as they are, without a back end.

        Raises ConfigError.
        """
        chosen("mapping", mapping, ("stream", "off"))
        chosen("poses", poses, ("prior", "fixed"))
        loaded, choice, policy = self._loaded, self._choice, None
        preset = loaded.preset
        if isinstance(keyframes, str | int):
            preset = dataclasses.replace(choice, keyframes=str(keyframes)).load_preset()
        else:
            policy = keyframes
        engine = loaded.engine(choice.attention, choice.cache, preset, policy)
        return Stream(engine, camera, mapping, tuple(listeners), self._lock, poses)

    def __repr__(self) -> str:
        return f"<Model {self._loaded.preset.name!r} on {self.device}, {self.precision}>"
