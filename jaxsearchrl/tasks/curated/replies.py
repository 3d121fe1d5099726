"""What a tool answers: a JSON body, written in full or in short, cut to the tokens that there is room for.

Every body is first made in the published JSON form; the short form, for small models, is written from that. What a
document says stays inside its field: JSON escapes it, and the short form keeps each hit on one line. An id that such a
line could not show as it is stands there as a JSON string, which is what the model has to write in its call anyway.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxsearchrl.search.contract import Document, Hit
from jaxsearchrl.text import largest, well_formed

Body = dict[str, Any]
Write = Callable[[Body], str]

_NEXT_STEP = "Curate what supports the query, search for what is still missing, or finish."
_CUT = " (truncated)"
_NO_ROOM = {"error": "no_room", "message": "No room left in this turn's observation; make fewer calls in one turn."}


@dataclass(frozen=True)
class Reply:
    """An answer before it is cut to size.

    outcome: a word for the records; ok: whether the call did what it asked for.
    body(n, chars): the answer with the first n documents of `ids`, each text in it cut to `chars` characters.
    ids: documents that a search found, best first. chars: length of the longest text in the answer.
    """

    outcome: str
    ok: bool
    body: Callable[[int, int], Body]
    ids: tuple[str, ...] = ()
    chars: int = 0


def fixed(outcome: str, body: Body, *, ok: bool = True) -> Reply:
    """An answer that is short by nature."""
    return Reply(outcome, ok, lambda n, chars: body)


def fault(code: str, message: str) -> Reply:
    """An answer to a mistake; the message names it and the right form."""
    return fixed(code, {"error": code, "message": message}, ok=False)


def found(
    query: str | Sequence[str],
    hits: Sequence[Hit],
    snippet_chars: int,
    state: Callable[[Sequence[str]], Body],
    left_out: int = 0,
) -> Reply:
    """The answer of a search by one query, or by several.

    state: the numbers of the episode once the ids handed to it are shown. left_out: hits that were shown before and are
    hidden now.
    """
    ids = tuple(hit.document.id for hit in hits)

    def body(n: int, chars: int) -> Body:
        shown = {"shown": f"{n} of {len(hits)}"} if n < len(hits) else {}
        shown |= {"seen_left_out": left_out} if left_out else {}
        asked = {"query": query[:chars]} if isinstance(query, str) else {"queries": [text[:chars] for text in query]}
        return {
            **asked,
            "candidate_count": len(hits),
            "count": n,
            **shown,
            "results": [_result(hit, chars, cut=chars < snippet_chars) for hit in hits[:n]],
            "search_state": {**state(ids[:n]), "next_step": _NEXT_STEP},
        }

    nothing = "nothing_new" if left_out else "nothing_found"
    return Reply("found" if hits else nothing, True, body, ids, snippet_chars)


def document(document: Document, read_chars: int, title_chars: int) -> Reply:
    """The answer of a read: the text's first `read_chars` characters."""

    def body(n: int, chars: int) -> Body:
        text = document.text[: min(chars, read_chars)]
        title = document.title[: min(chars, title_chars)]
        return {"document_id": document.id, "title": title, "text": text, "truncated": len(text) < len(document.text)}

    # a read has no hits to leave out, so its text alone shrinks
    return Reply("read", True, body, chars=max(title_chars, min(read_chars, len(document.text))))


def as_json(body: Body) -> str:
    """The published form."""
    return well_formed(json.dumps(body, ensure_ascii=False))


def as_text(body: Body) -> str:
    """The short form: a line per hit, `id | title | snippet`, and a few words for everything else."""
    left = f", {body['tokens_left']} tokens left" if "tokens_left" in body else ""
    lines = [f"turn {body['turn']}{left}"] if "turn" in body else []
    if "error" in body:
        lines.append(f"error: {body['message']}")
    elif "results" in body:
        lines += [_hit_line(result) for result in body["results"]]
        if "shown" in body:
            lines.append(f"{body['shown']} shown")
        elif not body["results"]:
            lines.append("nothing new" if "seen_left_out" in body else "nothing found")
        if "seen_left_out" in body:
            lines.append(f"{body['seen_left_out']} shown before left out")
    elif "text" in body:
        lines += [_one_line(body["title"]), body["text"] + (_CUT if body["truncated"] else "")]
    elif "removed" in body:
        lines.append(_listed("dropped", body["removed"]))
        if "not_curated" in body:
            lines.append(_listed("not curated", body["not_curated"]))
    elif "accepted" in body:
        lines.append(_listed("finished", body["curated_ids"]))
    else:
        lines.append(_listed("curated", body["added"]))
        for key, words in _CURATE_NOTES.items():
            if key in body:
                lines.append(_listed(words, body[key]))
    return well_formed("\n".join(lines))


def top_hit(text: str) -> str | None:
    """The id of the first hit of a search's answer, in either form; None if it shows none."""
    return next(iter(shown_ids(text)), None)


def shown_ids(text: str) -> list[str]:
    """The ids of the hits that an answer shows, in either form, best first; a read, or any other answer, shows none."""
    if text.startswith("{"):  # JSON: no short answer begins so, for an id that does is quoted
        try:
            return [result["document_id"] for result in json.loads(text).get("results", ())]
        except ValueError:
            return []
    lines = [line for line in text.splitlines() if " | " in line and not line.startswith("error: ")]
    return [json.JSONDecoder().raw_decode(hit)[0] if hit.startswith('"') else hit.split(" | ")[0] for hit in lines]


def fit(reply: Reply, write: Write, room: int, count_tokens: Callable[[str], int]) -> tuple[str, tuple[str, ...]]:
    """The answer's text in at most `room` tokens, and the ids of the hits in it.

    Hits go first, whole and from the end; then the one that is left (or the text that was read) is cut. A search or
    read that has no room even so says that; at a few tokens, any answer is cut as it stands.
    """

    def fits(text: str) -> bool:
        return count_tokens(text) <= room

    least = min(1, len(reply.ids))
    n = largest(least, len(reply.ids), lambda n: fits(write(reply.body(n, reply.chars))))
    if n is not None:
        return write(reply.body(n, reply.chars)), reply.ids[:n]
    chars = largest(0, reply.chars, lambda chars: fits(write(reply.body(least, chars))))
    if chars is not None:
        return write(reply.body(least, chars)), reply.ids[:least]
    text = write(reply.body(0, 0))
    if reply.chars and not fits(text):
        text = write(_NO_ROOM)
    length = largest(0, len(text), lambda length: fits(text[:length]))
    return text[: length or 0], ()


def _result(hit: Hit, chars: int, *, cut: bool) -> Body:
    result = {
        "document_id": hit.document.id,
        "title": hit.document.title[:chars],
        "snippet": hit.snippet[:chars],
        "score": round(hit.score, 4),
    }
    return {**result, "truncated": True} if cut else result


def _hit_line(result: Mapping[str, Any]) -> str:
    line = " | ".join((_id(result["document_id"]), _one_line(result["title"]), _one_line(result["snippet"])))
    return line + _CUT if "truncated" in result else line


_CURATE_NOTES = {
    "already_curated": "already curated",
    "invalid_document_ids": "refused, no search has shown",
    "dropped_over_capacity": "refused, the set is full",
}


def _listed(word: str, ids: Sequence[str]) -> str:
    return f"{word} {len(ids)}" + (f": {', '.join(map(_id, ids))}" if ids else "")


def _id(document_id: str) -> str:
    plain = (
        document_id.isprintable()
        and document_id == _one_line(document_id)
        and not any(mark in f"{document_id} " for mark in (" | ", ", "))
        and not document_id.startswith(('"', "{", "error: "))
    )
    return document_id if plain else json.dumps(document_id)


def _one_line(text: str) -> str:
    return " ".join(text.split())
