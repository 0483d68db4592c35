"""What all tests need of the process they run in."""

import importlib
import os
import signal

# A shell ignores SIGINT for what it starts in the background, and programs that tests start would inherit that: those
# that are to end by Ctrl-C would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Beside other processes of tests each has one core, and so have the programs that it starts.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# The program says how many threads numpy's products have, as long as numpy is not there yet: with another number here
# than in processes of its own they would differ in their last digits.
importlib.import_module("stream_recon.app")
