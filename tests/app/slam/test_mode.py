"""Which stage a run gets."""

from stream_recon.app.slam.mode import stream_stage
from stream_recon.app.slam.online.stage import StreamStage


def test_without_geometry_there_is_no_stage() -> None:
    assert stream_stage("off", 8) is None


def test_each_run_gets_a_stage_of_its_own() -> None:
    first, second = stream_stage("stream", 8), stream_stage("full", 8, live=True)
    assert isinstance(first, StreamStage) and isinstance(second, StreamStage) and first is not second
