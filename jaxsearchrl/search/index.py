"""The local index: ranked search, grep and reading over one corpus, from one folder on disk."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search import build, grep, ranking, snippets, words
from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.search.grams import Grams
from jaxsearchrl.search.manifest import check_unchanged, read_manifest
from jaxsearchrl.search.options import IndexOptions
from jaxsearchrl.search.store import DocumentStore
from jaxsearchrl.search.terms import open_terms


def open_or_build(
    corpus_path: str | Path,
    index_dir: str | Path = "",
    *,
    options: IndexOptions | None = None,
    snippet_chars: int = 220,
) -> "LocalIndex":
    """The index of a corpus (a file or a folder, see corpus_files.py), built when there is none yet.

    index_dir: empty for the corpus's path with ".index" added.
    options: None takes an index as it was built, and builds by the defaults.
    snippet_chars: of a hit's snippet; 0 makes none, which is quicker.
    Raises UserError for a missing or malformed corpus, one that changed since the index was built, and for an index
    of other options.
    """
    corpus = Path(corpus_path).expanduser().absolute()
    if not corpus.exists():
        raise UserError(f"{corpus}: no such corpus file or folder")
    folder = Path(index_dir).expanduser().absolute() if index_dir else corpus.with_name(corpus.name + ".index")
    if build.is_absent(folder):
        build.build(corpus, folder, options or IndexOptions())
    manifest = read_manifest(folder)
    if options and (differences := manifest.options.differences(options)):
        raise UserError(
            f"{folder} was built with other options ({differences}): delete that folder to rebuild it, or name another "
            "index folder"
        )
    check_unchanged(folder, corpus)
    return LocalIndex(folder, snippet_chars=snippet_chars)


class LocalIndex:
    """A Retriever and a Corpus. Opens files for reading only; any number of threads and processes may share one folder.

    size: documents of the corpus. fingerprint: names corpus and options, equal wherever results are.
    manifest: what the index was made from. folder: where it lies.
    """

    def __init__(self, folder: str | Path, *, snippet_chars: int = 220):
        """Raises UserError when the folder is no index of this program's version."""
        self.folder = folder = Path(folder).absolute()
        self.manifest = read_manifest(folder)
        self.fingerprint = self.manifest.fingerprint
        try:
            self._store = DocumentStore(folder)
            self._grams = Grams(folder, self._store)
            self._searcher, self._schema = open_terms(folder / "terms")
        except (OSError, ValueError) as error:
            raise UserError(f"{folder} cannot be opened ({error}); delete the folder to rebuild it") from error
        self.size = len(self._store)
        self._analyser = words.analyser(self.manifest.options)
        self._term_of = functools.lru_cache(maxsize=100_000)(self._analyse_word)
        self._blocks = self._store.blocks(grep.BLOCK_BYTES)
        self._snippet_chars = snippet_chars

    def search(self, query: str, k: int) -> list[Hit]:
        """The best k documents (k held within 1 and the corpus's size) by BM25, of equal scores the corpus's first.

        Query and documents (title and text as one) are compared word by word, as the index's options say, by default
        after stemming. Fewer than k hits when fewer documents share a word with the query; none when it has no words.
        Raises InfrastructureError.
        """
        hits = []
        with _engine_failures():
            terms = words.query_terms(self._analyser, query)
            for score, ordinal in self._ranked(terms, self._clamp(k)):
                document = self._store.document(ordinal)
                hits.append(Hit(document, score, self._snippet(document.text, set(terms))))
        return hits

    def grep(self, pattern: str, k: int, *, case_sensitive: bool = False, skip: int = 0) -> list[Hit]:
        """The first k documents in corpus order whose title + newline + text match an RE2 pattern; scores are 0.

        skip: pass over so many matching documents first. Exact over the whole corpus. Raises BadPattern.
        """
        compiled = grep.compile_pattern(pattern, case_sensitive)
        found = grep.matches(self._store, self._blocks, compiled, self._grams)
        hits = []
        skip = max(0, min(skip, self.size))
        for ordinal, position in itertools.islice(found, skip, skip + self._clamp(k)):
            body = self._store.body(ordinal)
            match = len(body[:position].decode("utf-8", "replace"))
            snippet = snippets.window(body.decode(), match, self._snippet_chars)
            hits.append(Hit(self._store.document(ordinal), 0.0, snippet))
        return hits

    def read(self, document_id: str) -> Document | None:
        """The document, or None for an unknown id."""
        ordinal = self._store.ordinal(document_id)
        return None if ordinal is None else self._store.document(ordinal)

    def id(self, ordinal: int) -> str:
        """The id of the document at a place of the corpus, from 0."""
        return self._store.id(ordinal)

    def document(self, ordinal: int) -> Document:
        """The document at a place of the corpus, from 0."""
        return self._store.document(ordinal)

    def _snippet(self, text: str, terms: set[str]) -> str:
        size = self._snippet_chars
        return snippets.densest(text, terms, self._term_of, size) if size else ""

    def _clamp(self, k: int) -> int:
        return max(1, min(k, self.size))

    def _analyse_word(self, word: str) -> str:
        terms = self._analyser.analyze(word)
        return terms[0] if len(terms) == 1 else ""

    def _ranked(self, terms: Sequence[str], k: int) -> list[tuple[float, int]]:
        """(score, ordinal), best first."""
        found = ranking.best(self._searcher, ranking.clauses(self._searcher, self._schema, terms), k)
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
