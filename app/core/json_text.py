"""Parser for JSON that other programs or a killed process may have written."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse ``text``. Raises ValueError: not JSON, not UTF-8, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
