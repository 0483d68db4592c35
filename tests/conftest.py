"""Settings of the test process."""

import importlib
import os
import signal

# A shell starts background processes with SIGINT ignored. Programs that tests start would inherit that, and those that
# tests stop by Ctrl-C would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)
# With several test processes each one, and each program that it starts, uses one core.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# The package sets the thread count of numpy's products before numpy is imported. With another count here than in the
# program's own processes, results would differ in their last digits.
importlib.import_module("stream_recon.app")
