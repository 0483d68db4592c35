"""Option ``--publish`` of a run."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from stream_recon.configs.errors import OutputError

if TYPE_CHECKING:
    from stream_recon.app.publishing.publisher import ResultPublisher
    from stream_recon.app.run.options import RunOptions
    from stream_recon.app.sources.source import Source
    from stream_recon.configs.schema import PointsConfig


@contextmanager
def publishing(
    options: "RunOptions", source: "Source", points: "PointsConfig", on_message: Callable[[str], None]
) -> Iterator["ResultPublisher | None"]:
    """A publisher to all addresses of ``--publish`` within the block; None where there is none.

    ``on_message`` gets a line for each address. Raises ConfigError, ResourceError or OutputError before the block where
    one cannot be opened; OutputError after it where publishing ended early.
    """
    if not options.publish:
        yield None
        return
    from stream_recon.app.publishing.address import mount_of, open_sinks, parse_address
    from stream_recon.app.publishing.frame_tree import camera_on_base
    from stream_recon.app.publishing.publisher import Clock, PublisherOptions, ResultPublisher

    parsed = [parse_address(address) for address in options.publish]
    mount = camera_on_base(mount_of(parsed))
    # Images without stamps count from now.
    origin = time.time_ns() if source.origin_ns is None else source.origin_ns
    clock = Clock(origin, source.live)
    with ResultPublisher(
        open_sinks(parsed, token=options.publish_token), PublisherOptions(points, clock, mount)
    ) as publisher:
        for sink in publisher.sinks:
            on_message(f"publishing: {sink.address}")
        yield publisher
    if publisher.failures:
        raise OutputError(f"publishing ended early: {'; '.join(publisher.failures)}")
