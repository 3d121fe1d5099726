"""Results of searches kept on disk, so that a run can be repeated without the engine."""

import json
import sqlite3
import threading
from collections.abc import Sequence
from pathlib import Path

from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search.contract import Document, Hit


class ResultCache:
    """One SQLite file, which threads and processes may share. What is in it never grows old: delete the file to renew.

    engine: what the results depend on beside query and k.
    """

    def __init__(self, path: str | Path, engine: Sequence[str]):
        """Raises UserError for a file that cannot be used."""
        self.path, self._engine = Path(path).expanduser().absolute(), tuple(engine)
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._database = sqlite3.connect(self.path, timeout=60, check_same_thread=False, isolation_level=None)
            self._database.execute("CREATE TABLE IF NOT EXISTS results (search TEXT PRIMARY KEY, hits TEXT NOT NULL)")
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"{self.path}: cannot be used as a cache of searches ({error}); name another") from error

    def get(self, query: str, k: int) -> list[Hit] | None:
        """The results of a search that was kept, None for another one. Raises InfrastructureError."""
        rows = self._run("SELECT hits FROM results WHERE search = ?", (self._key(query, k),))
        if not rows:
            return None
        return [Hit(Document(i, title, text), score, "") for i, title, text, score in json.loads(rows[0][0])]

    def put(self, query: str, k: int, hits: Sequence[Hit]) -> None:
        """Keeps the results of a search. Raises InfrastructureError."""
        rows = [(hit.document.id, hit.document.title, hit.document.text, hit.score) for hit in hits]
        self._run("INSERT OR REPLACE INTO results VALUES (?, ?)", (self._key(query, k), json.dumps(rows)))

    @property
    def empty(self) -> bool:
        """Whether nothing was kept yet, of any engine."""
        return not self._run("SELECT 1 FROM results LIMIT 1", ())

    def _key(self, query: str, k: int) -> str:
        return json.dumps([*self._engine, query, k])

    def _run(self, statement: str, values: tuple) -> list:
        try:
            with self._lock:
                return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise InfrastructureError(f"{self.path}: the cache of searches failed ({error})") from error
