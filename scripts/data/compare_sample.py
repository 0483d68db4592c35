#!/usr/bin/env python3
"""Print the error of a result of the packaged sample against its ground truth: scripts/data/compare_sample.py OUT"""

import argparse
import sys
from pathlib import Path

from stream_recon.app.cli.demo import print_errors
from stream_recon.configs.errors import StreamReconError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    try:
        print_errors(parser.parse_args().folder)
    except StreamReconError as error:
        print(f"compare_sample: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
