#!/usr/bin/env python3
"""Convert a published LingBot-Map checkpoint: scripts/convert_checkpoint.py IN.pt OUT.safetensors"""

import argparse
import sys
from pathlib import Path

from stream_recon.configs.errors import StreamReconError
from stream_recon.models.weights import convert_checkpoint


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    arguments = parser.parse_args()
    try:
        count = convert_checkpoint(arguments.source, arguments.target)
    except StreamReconError as error:
        print(f"convert_checkpoint: {error}", file=sys.stderr)
        return 2
    print(f"{count} tensors written to {arguments.target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
