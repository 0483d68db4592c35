"""What all tests need of the process they run in."""

import signal

# A shell ignores SIGINT for what it starts in the background, and programs that tests start would inherit that: those
# that are to end by Ctrl-C would never end.
signal.signal(signal.SIGINT, signal.default_int_handler)
