"""The one way to read JSON that somebody else, or a killed process, may have written."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """The value that ``text`` stands for.

    Raises:
        ValueError: no JSON, not UTF-8, or nested deeper than can be read.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
