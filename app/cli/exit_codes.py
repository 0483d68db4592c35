"""Exit codes of all commands."""

DONE = 0
FAILED = 1
"""Some scene of a batch failed; the others are done."""
BAD_INPUT = 2
"""Input, options or surroundings that cannot work: one line on stderr says what to do."""
INTERRUPTED = 130
"""128 + SIGINT, as shells report a program that Ctrl-C ended. What was finished is kept."""
