"""The command line, as ``python -m stream_recon``."""

from stream_recon.app.cli.main import program

if __name__ == "__main__":
    program()
