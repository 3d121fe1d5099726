"""From templates to pages: escaping is on, and every text of a record goes through `visible` or `lit`."""

import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from jaxsearchrl.viewer import drawings
from jaxsearchrl.viewer.facts import STATES
from jaxsearchrl.viewer.runs import Run
from jaxsearchrl.viewer.summary import KINDS
from jaxsearchrl.viewer.visible import LONGEST, plain, visible

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'"
)
"""The content-security policy: nothing from elsewhere, and no script or style that stands in a page."""
_DASH = "\N{EN DASH}"


@dataclass(frozen=True)
class Here:
    """The address that is asked for. query: what stands behind its question mark; live: see `Site.signature`."""

    path: str
    runs: Sequence[Run]
    query: Mapping[str, str]
    exported: bool
    live: str = ""

    def url(self, target: str) -> str:
        """Another address as a link on this page; it works on a server and in files."""
        return quote(os.fsencode(posixpath.relpath(target, posixpath.dirname(self.path) or ".")))


def render(name: str, here: Here, **values: Any) -> str:
    """A page."""
    return _environment().get_template(name).render(here=here, url=here.url, policy=POLICY, **values)


def fault_page(here: Here, message: str) -> str:
    """A page that says what is wrong."""
    return render("fault.html", here, message=message)


def number(value: Any, digits: int = 3) -> str:
    """A number in few digits; a dash for what is none."""
    if not isinstance(value, int | float):
        return _DASH
    text = f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.{digits}g}"
    return text.replace("-", "\N{MINUS SIGN}") if float(text) else f"{0:.{digits}f}"


def signed(value: float | None) -> str:
    """With its sign."""
    return f"+{number(value)}" if value is not None and value > 0 else number(value)


def seconds(value: float) -> str:
    """A time span in words."""
    if value >= 60:
        return f"{int(value // 60)} min {value % 60:.0f} s"
    return f"{value:.1f} s" if value >= 0.1 else f"{value * 1000:.0f} ms"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"visible": visible, "plain": plain, "number": number, "signed": signed, "seconds": seconds}
    environment.globals |= {"drawings": drawings, "kinds": KINDS, "states": STATES, "longest_text": LONGEST}
    return environment
