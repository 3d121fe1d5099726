"""Answers of a server, and pauses that are not made."""

import time
from types import SimpleNamespace

import pytest

from jaxsearchrl.search.remote import http
from tests import http_server


@pytest.fixture
def answer():
    """The kinds of answers."""
    return http_server


@pytest.fixture
def pauses(monkeypatch):
    """The pauses that retries would have made."""
    made = []
    monkeypatch.setattr(http, "time", SimpleNamespace(monotonic=time.monotonic, sleep=made.append))
    return made
