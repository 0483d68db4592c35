"""The body of the command ``datasets``."""

from rich.table import Table

from stream_recon.app.cli.console import DONE, wide_console
from stream_recon.app.datasets.catalogue import list_datasets


def run() -> int:
    """Print a table of the layouts that are recognised."""
    table = Table("--dataset", "what")
    table.add_column("recognised by", overflow="fold")
    for name, title, files in list_datasets():
        table.add_row(name, title, files)
    wide_console().print(table)
    return DONE
