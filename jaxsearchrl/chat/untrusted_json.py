"""JSON that a model wrote in a call: read strictly, with faults in words for the model."""

import json
from typing import Any

from jaxsearchrl.strict_json import DECODER, check_value, too_deep

MAX_DEPTH = 32


def read(text: str) -> Any:
    """The JSON value that a text is. Raises ValueError that names the fault."""
    try:
        value = DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(fault(error, 0)) from None
    except RecursionError:
        raise ValueError(too_deep(MAX_DEPTH)) from None
    check(value)
    return value


def check(value: Any) -> None:
    """Refuses what would fail later, when the value is written as JSON or its text is encoded. Raises ValueError."""
    check_value(value, MAX_DEPTH)
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a \\u escape is half of a surrogate pair") from None


def fault(error: json.JSONDecodeError, start: int) -> str:
    """What is wrong with JSON that starts at `start`."""
    return f"invalid JSON, {error.msg.removesuffix(' at')} at character {error.pos - start + 1}"
