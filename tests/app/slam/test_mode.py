"""Choice of the back end."""

from stream_recon.app.slam.mode import make_back_end
from stream_recon.app.slam.online.back_end import OnlineBackEnd


def test_off_has_no_back_end() -> None:
    assert make_back_end("off", 8) is None


def test_each_run_gets_a_new_back_end() -> None:
    first, second = make_back_end("stream", 8), make_back_end("full", 8, live=True)
    assert isinstance(first, OnlineBackEnd) and isinstance(second, OnlineBackEnd) and first is not second
