"""What is decided when an index is built. All of it is in the index's manifest and in its fingerprint."""

from dataclasses import asdict, dataclass

from jaxsearchrl.errors import UserError


@dataclass(frozen=True)
class IndexOptions:
    """How words become terms, how much a title counts, and how text files are cut.

    stemming: English word endings are cut off, so that "flies" finds "fly".
    stop_words: the English function words ("the", "of"; tantivy's list of 33) are searchable.
    diacritics: "é" is another letter than "e".
    title_weight: how many times a title stands before its text, 0 for not at all.
    chunk_words, chunk_overlap: words in a chunk of a .txt or .md file, and how many of them begin the next one.
    Raises UserError for values that make no sense.
    """

    stemming: bool = True
    stop_words: bool = True
    diacritics: bool = False
    title_weight: int = 1
    chunk_words: int = 200
    chunk_overlap: int = 40

    def __post_init__(self):
        if self.title_weight < 0:
            raise UserError(f"title_weight={self.title_weight}: must be a whole number from 0 on")
        if self.chunk_words < 1:
            raise UserError(f"chunk_words={self.chunk_words}: must be at least 1")
        if not 0 <= self.chunk_overlap < self.chunk_words:
            raise UserError(f"chunk_overlap={self.chunk_overlap}: must be from 0 to {self.chunk_words - 1}")

    def differences(self, other: "IndexOptions") -> str:
        """Where the two differ, in words; empty if nowhere."""
        pairs = zip(asdict(self).items(), asdict(other).values(), strict=True)
        return ", ".join(f"{key}={value}, not {theirs}" for (key, value), theirs in pairs if value != theirs)
