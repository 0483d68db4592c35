"""Ending work early: by a signal, by a call, and at once by a second signal."""

import signal
import threading

import pytest

from stream_recon.app.core.cancel import Cancel, Cancelled, cancel_on_signals


def test_the_first_signal_requests_the_end_and_the_second_ends_at_once() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with cancel_on_signals() as cancel:
        cancel.check()
        signal.raise_signal(signal.SIGTERM)
        assert cancel()
        with pytest.raises(Cancelled):
            cancel.check()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_token_may_be_shared_and_requested_by_any_thread() -> None:
    shared = Cancel()
    with cancel_on_signals(shared) as cancel:
        thread = threading.Thread(target=shared.request)
        thread.start()
        thread.join()
        assert cancel is shared and cancel()
