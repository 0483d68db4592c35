"""Command line: one file a command, exit codes, progress and messages."""
