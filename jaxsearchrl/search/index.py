"""The local index: ranked search, grep and reading over one corpus, from one folder on disk."""

import functools
import itertools
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tantivy

from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search import build, grep, snippets, words
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.store import DocumentStore


def open_or_build(corpus_path: str | Path, index_dir: str | Path = "", *, snippet_chars: int = 220) -> "LocalIndex":
    """The index of a JSONL corpus, built when there is none yet.

    index_dir: empty for the corpus's path with ".index" added.
    Raises UserError for a missing or malformed corpus, and for a corpus that changed since the index was built.
    """
    corpus = Path(corpus_path).expanduser().absolute()
    if not corpus.is_file():
        raise UserError(f"{corpus}: no such corpus file")
    folder = Path(index_dir).expanduser().absolute() if index_dir else corpus.with_name(corpus.name + ".index")
    if build.is_absent(folder):
        build.build(corpus, folder)
    build.check_unchanged(folder, corpus)
    return LocalIndex(folder, snippet_chars=snippet_chars)


class LocalIndex:
    """A Retriever and a Corpus. Opens files for reading only; any number of threads and processes may share one folder.

    size: documents of the corpus. fingerprint: names corpus and analyser, equal wherever results are.
    """

    def __init__(self, folder: str | Path, *, snippet_chars: int = 220):
        """Raises UserError when the folder is no index of this program's version."""
        folder = Path(folder).absolute()
        self.fingerprint = build.read_manifest(folder).fingerprint
        try:
            self._store = DocumentStore(folder)
            self._searcher, self._schema = _open_terms(folder / "tantivy")
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} cannot be opened ({error}); delete the folder to rebuild it") from error
        self.size = len(self._store)
        self._analyser = words.analyser()
        self._term_of = functools.lru_cache(maxsize=100_000)(self._analyse_word)
        self._blocks = self._store.blocks(grep.BLOCK_BYTES)
        self._snippet_chars = snippet_chars

    def search(self, query: str, k: int) -> list[Hit]:
        """The best k documents (k held within 1 and the corpus's size) by BM25, of equal scores the corpus's first.

        Query and documents are compared word by word after stemming; title words count double. Fewer than k hits when
        fewer documents share a word with the query; none when it has no words. Raises InfrastructureError.
        """
        hits = []
        with _engine_failures():
            terms = words.query_terms(self._analyser, query)
            for score, ordinal in self._ranked(words.any_of(self._schema, terms), self._clamp(k)):
                document = self._store.document(ordinal)
                snippet = snippets.densest(document.text, set(terms), self._term_of, self._snippet_chars)
                hits.append(Hit(document, score, snippet))
        return hits

    def grep(self, pattern: str, k: int, *, case_sensitive: bool = False) -> list[Hit]:
        """The first k documents in corpus order whose title + newline + text match an RE2 pattern; scores are 0.

        Exact over the whole corpus. Raises BadPattern.
        """
        compiled = grep.compile_pattern(pattern, case_sensitive)
        found = grep.matches(self._store, self._blocks, compiled)
        hits = []
        for ordinal, position in itertools.islice(found, self._clamp(k)):
            body = self._store.body(ordinal)
            match = len(body[:position].decode("utf-8", "replace"))
            snippet = snippets.window(body.decode(), match, self._snippet_chars)
            hits.append(Hit(self._store.document(ordinal), 0.0, snippet))
        return hits

    def read(self, document_id: str) -> Document | None:
        """The document, or None for an unknown id."""
        ordinal = self._store.ordinal(document_id)
        return None if ordinal is None else self._store.document(ordinal)

    def _clamp(self, k: int) -> int:
        return max(1, min(k, self.size))

    def _analyse_word(self, word: str) -> str:
        terms = self._analyser.analyze(word)
        return terms[0] if len(terms) == 1 else ""

    def _ranked(self, query: tantivy.Query, k: int) -> list[tuple[float, int]]:
        """(score, ordinal), best first. tantivy cuts ties anywhere: ask until all that equal the k-th are in."""
        limit = min(k + 1, self.size)
        while True:
            found = self._searcher.search(query, limit=limit, count=False).hits
            if len(found) < limit or limit == self.size or found[-1][0] < found[k - 1][0]:
                break
            limit = min(2 * limit, self.size)
        ranked = [(score, self._searcher.doc(address)["ordinal"][0]) for score, address in found]
        return sorted(ranked, key=lambda hit: (-hit[0], hit[1]))[:k]


@contextmanager
def _engine_failures() -> Iterator[None]:
    """Whatever a search raises becomes InfrastructureError. A panic of tantivy, no Exception, would end the run."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise InfrastructureError(
            f"the search failed ({type(error).__name__}: {error}); if it does so again, delete the index to rebuild it"
        ) from error


def _open_terms(folder: Path) -> tuple[tantivy.Searcher, tantivy.Schema]:
    """Opens by links from a temporary folder: tantivy makes a lock file even to read, and ours may be read-only."""
    # tantivy's watching thread may make the lock file just while the folder is deleted: then an empty file stays.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as links:
        for file in folder.iterdir():
            if file.suffix != ".lock":
                Path(links, file.name).symlink_to(file)
        index = tantivy.Index.open(links)
        index.config_reader("manual")
        # The searcher has every file open; the links are needed no more.
        return index.searcher(), index.schema
