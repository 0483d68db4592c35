"""Where tables are printed."""

from rich.console import Console

PIPE_WIDTH = 200
"""Columns of tables where the output is not a terminal, so that no figure is cut off."""


def wide_console() -> Console:
    """As wide as the terminal, or else as any table."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=PIPE_WIDTH)
