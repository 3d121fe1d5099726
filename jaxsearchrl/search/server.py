"""Serves a retriever over HTTP, request and answer as Search-R1's retrieval server has them.

    POST /retrieve  {"queries": ["…", …], "topk": 3 or null, "return_scores": false}
                    {"result": [[document, …] per query]}; with return_scores {"document": document, "score": 1.5}
    GET  /health    {"status": "ok", "documents": 124395, "fingerprint": "…"}
    GET  /metrics   Prometheus's text
    GET  /docs      OpenAPI

One string `query` may stand for `queries`. A document is `{"id", "title", "text", "contents"}`: what Search-R1's
servers give with and without stored documents, in one. Queries of a request are searched side by side.
Needs the extra `server`.
"""

import asyncio
import hmac
import json
import logging
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ValidationError

from jaxsearchrl import strict_json
from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search.contents import join_contents
from jaxsearchrl.search.contract import Hit
from jaxsearchrl.search.index import LocalIndex
from jaxsearchrl.text import well_formed

GRACE_SECONDS = 30
"""How long requests at work may take when the server is asked to stop."""

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limits:
    """What a request may ask for. `topk` is what it gets when it does not say; `threads` search at once."""

    topk: int = 3
    max_topk: int = 100
    max_queries: int = 4096
    max_query_chars: int = 10_000
    max_body_bytes: int = 32 * 2**20
    threads: int = 8


class RetrieveRequest(BaseModel):
    """`queries`, or one `query`. topk null or 0: the server's own."""

    queries: list[str] | None = None
    query: str | None = None
    topk: int | None = None
    return_scores: bool = False


class ServedDocument(BaseModel):
    """`contents`: the title in quotes, a line break and the text."""

    id: str
    title: str
    text: str
    contents: str


class ScoredDocument(BaseModel):
    """An item with return_scores."""

    document: ServedDocument
    score: float


class RetrieveResponse(BaseModel):
    """A list per query, best first: shorter than topk, or empty, where fewer documents match."""

    result: list[list[ScoredDocument]] | list[list[ServedDocument]]


def make_app(index: LocalIndex, limits: Limits, token: str = "") -> FastAPI:
    """The application. token: what `Authorization: Bearer …` must say for all but /health; "" lets everybody in.

    A request over a limit is answered 422 (413 for its bytes), a search that failed 500.
    """
    app = FastAPI(title="jaxsearchrl search", description="Search-R1's retrieval API.", version="1")
    pool = ThreadPoolExecutor(limits.threads, thread_name_prefix="search")
    registry = CollectorRegistry()
    requests = Counter("search_requests", "Requests to /retrieve, by status", ["status"], registry=registry)
    queries = Counter("search_queries", "Queries searched", registry=registry)
    seconds = Histogram("search_request_seconds", "Wall time of a request", buckets=_BUCKETS, registry=registry)
    at_work = Gauge("search_requests_at_work", "Requests to /retrieve under way", registry=registry)
    bearer = HTTPBearer(auto_error=False)

    async def authorise(  # not async, it would be run in a thread
        given: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
    ) -> None:
        if token and not (given and hmac.compare_digest(given.credentials.encode(), token.encode())):
            raise HTTPException(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})

    async def answer(request: Request) -> bytes:
        asked = _parse(await _body(request, limits.max_body_bytes))
        texts = _queries(asked, limits)
        k = _topk(asked, limits)
        search = asyncio.get_running_loop().run_in_executor
        found = await asyncio.gather(*(search(pool, index.search, text, k) for text in texts))
        queries.inc(len(texts))
        result = [[_item(hit, asked.return_scores) for hit in hits] for hits in found]
        return json.dumps({"result": result}, ensure_ascii=False).encode()

    body = {"required": True, "content": {"application/json": {"schema": RetrieveRequest.model_json_schema()}}}

    @app.post(
        "/retrieve",
        response_model=RetrieveResponse,
        openapi_extra={"requestBody": body},
        dependencies=[Depends(authorise)],
    )
    async def retrieve(request: Request) -> Response:
        """The best documents for each query."""
        started, status = time.monotonic(), 500
        try:
            with at_work.track_inprogress():
                content = await answer(request)
            status = 200
        except HTTPException as error:
            status = error.status_code
            raise
        except InfrastructureError as error:
            _log.error("a search failed", exc_info=error)
            raise HTTPException(500, str(error)) from error
        finally:
            requests.labels(status).inc()
            seconds.observe(time.monotonic() - started)
        return Response(content, media_type="application/json")

    @app.get("/health")
    async def health() -> dict[str, str | int]:
        """Whether the index is open."""
        return {"status": "ok", "documents": index.size, "fingerprint": index.fingerprint}

    @app.get("/metrics", dependencies=[Depends(authorise)], response_class=Response)
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return app


def serve(index: LocalIndex, limits: Limits, host: str, port: int, token: str = "") -> None:
    """Serves until SIGTERM or SIGINT; then requests at work are answered, and it returns. port 0: any that is free.

    Raises UserError for an address that cannot be had.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise UserError(f"--host {host} --port {port}: cannot listen there ({error}); choose another port") from error
    config = uvicorn.Config(
        make_app(index, limits, token),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    # uvicorn stops by the signal, and raises it again when all is done, for whoever started it; that is us.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    shown = f"[{host}]" if ":" in host else host
    print(f"{index.size} documents at http://{shown}:{listening.getsockname()[1]}/retrieve", flush=True)
    uvicorn.Server(config).run(sockets=[listening])


async def _body(request: Request, most: int) -> bytes:
    """The body, read no further than its limit."""
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > most:
            raise HTTPException(413, f"the request has more than {most} bytes; send fewer queries at once")
    return b"".join(parts)


def _parse(body: bytes) -> RetrieveRequest:
    try:
        return RetrieveRequest.model_validate(_well_formed(strict_json.parse(body.decode())))
    except ValidationError as error:
        raise HTTPException(422, error.errors(include_url=False, include_input=False, include_context=False)) from error
    except ValueError as error:
        raise HTTPException(422, f"the body is not JSON ({error})") from error


def _well_formed(value: Any) -> Any:
    """With lone surrogates replaced in the queries: what a model wrote is searched, whatever it is."""
    if not isinstance(value, dict):
        return value
    repaired = dict(value)
    if isinstance(query := value.get("query"), str):
        repaired["query"] = well_formed(query)
    if isinstance(queries := value.get("queries"), list):
        repaired["queries"] = [well_formed(query) if isinstance(query, str) else query for query in queries]
    return repaired


def _queries(asked: RetrieveRequest, limits: Limits) -> list[str]:
    if (asked.queries is None) == (asked.query is None):
        raise HTTPException(422, 'give "queries" (a list of strings), or one "query"')
    queries = [asked.query or ""] if asked.queries is None else asked.queries
    if len(queries) > limits.max_queries:
        raise HTTPException(422, f"{len(queries)} queries; at most {limits.max_queries} are allowed in a request")
    for number, query in enumerate(queries):
        if len(query) > limits.max_query_chars:
            raise HTTPException(
                422, f"query {number} has {len(query)} characters; at most {limits.max_query_chars} are allowed"
            )
    return queries


def _topk(asked: RetrieveRequest, limits: Limits) -> int:
    k = asked.topk or limits.topk
    if not 1 <= k <= limits.max_topk:
        raise HTTPException(422, f"topk = {k}: must be between 1 and {limits.max_topk}, or null")
    return k


def _item(hit: Hit, scored: bool) -> dict[str, Any]:
    title, text = hit.document.title, hit.document.text
    document = {"id": hit.document.id, "title": title, "text": text, "contents": join_contents(title, text)}
    return {"document": document, "score": hit.score} if scored else document
