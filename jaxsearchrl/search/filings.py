"""The title of a chunk in the corpora of Harness-1 (columns chunk_id, document_text, metadata_json)."""

import re
from typing import Any

from jaxsearchrl.errors import UserError
from jaxsearchrl.strict_json import read_object
from jaxsearchrl.text import well_formed

_COMPANY = re.compile(r"Company: *(.+)")


def title(text: str, metadata_json: Any, where: str) -> str:
    """`Company · form · filing date`, as sec-search-rl makes it; empty for a chunk that is of no filing.

    The company is named in one of the text's first four lines; else the ticker stands for it, else "SEC filing".
    Raises UserError, starting with `where`, for metadata that is no JSON object.
    """
    if metadata_json is not None and not isinstance(metadata_json, str):
        raise UserError(f'{where}: "metadata_json" must be a string, found {type(metadata_json).__name__}')
    metadata = read_object(metadata_json, f"{where}, metadata_json") if metadata_json else {}
    form, date, ticker = (_text(metadata.get(key)) for key in ("form_type", "filing_date", "ticker"))
    named = next((found for line in text.split("\n", 4)[:4] if (found := _COMPANY.match(line))), None)
    company = named[1].strip() if named else ticker or ("SEC filing" if form else "")
    return " · ".join(part for part in (company, form, date) if part) if company else ""


def _text(value: Any) -> str:
    return well_formed(value.strip()) if isinstance(value, str) else ""
