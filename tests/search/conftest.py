import json

import pytest

from jaxsearchrl.search.index import open_or_build


@pytest.fixture
def make_corpus(tmp_path):
    """Writes (id, title, text) rows to a corpus file and returns its path."""

    def make(rows, name="corpus.jsonl"):
        path = tmp_path / name
        lines = [json.dumps({"id": i, "title": title, "text": text}) for i, title, text in rows]
        path.write_text("".join(line + "\n" for line in lines))
        return path

    return make


@pytest.fixture
def make_index(make_corpus):
    """The index of (id, title, text) rows, or of plain texts with the ids "0", "1", ..."""

    def make(rows, **options):
        rows = [(str(n), "", row) if isinstance(row, str) else row for n, row in enumerate(rows)]
        return open_or_build(make_corpus(rows), **options)

    return make
