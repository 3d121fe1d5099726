"""Search a corpus from the command line. CORPUS is a file or a folder (docs/search.md).

python -m jaxsearchrl.search build  corpus.jsonl
python -m jaxsearchrl.search search corpus.jsonl "fast brooms" -k 5
python -m jaxsearchrl.search grep   corpus.jsonl "broom(s|stick)"
python -m jaxsearchrl.search read   corpus.jsonl 007
python -m jaxsearchrl.search info   corpus.jsonl
python -m jaxsearchrl.search serve  corpus.jsonl --port 8000
python -m jaxsearchrl.search bench  --chunks 20000
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search import bench
from jaxsearchrl.search.contract import BadPattern, Hit
from jaxsearchrl.search.index import LocalIndex, open_or_build
from jaxsearchrl.search.near_ids import near_ids
from jaxsearchrl.search.options import IndexOptions
from jaxsearchrl.search.reading import read_window
from jaxsearchrl.search.remote.search_r1 import TOKEN_VARIABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, 1 when nothing was found, 2 for an error."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "bench":
            return _bench(options)
        if options.command == "build":
            index = open_or_build(options.corpus, options.index_dir, options=_index_options(options))
            print(f"{index.size} documents, fingerprint {index.fingerprint}")
            return 0
        if options.command == "serve":
            return _serve(open_or_build(options.corpus, options.index_dir, snippet_chars=0), options)
        index = open_or_build(options.corpus, options.index_dir)
        if options.command == "info":
            return _info(index)
        if options.command == "search":
            return _show(index.search(options.query, options.k))
        if options.command == "grep":
            skip, case_sensitive = options.skip, options.case_sensitive
            return _show(index.grep(options.pattern, options.k, case_sensitive=case_sensitive, skip=skip), skip)
        found = read_window(index, options.id, around=options.around, start=options.start, size=options.chars)
        if found is None:
            raise UserError(f"{options.corpus} has no document {options.id!r}; {near_ids(index, options.id)}")
        print(f"{found.title}\n{found.text}")
        if found.truncated:
            print(found.extent, file=sys.stderr)
        return 0
    except (UserError, BadPattern, InfrastructureError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _serve(index: LocalIndex, options: argparse.Namespace) -> int:
    try:
        from jaxsearchrl.search.server import Limits, serve
    except ImportError as error:
        raise UserError(f"serve needs the extra server: pip install 'jaxsearchrl[server]' ({error})") from error
    limits = Limits(
        options.topk, options.max_topk, options.max_queries, options.max_query_chars, threads=options.threads
    )
    serve(index, limits, options.host, options.port, os.environ.get(TOKEN_VARIABLE, ""))
    return 0


def _show(hits: Sequence[Hit], skipped: int = 0) -> int:
    for rank, hit in enumerate(hits, start=1 + skipped):
        score = f"  {hit.score:8.4f}" if hit.score else ""  # grep has none
        print(f"{rank:3d}{score}  {hit.document.id}  {hit.document.title}")
        print("     " + " ".join(hit.snippet.split()))
    if not hits:
        print("no further document matches" if skipped else "no document matches", file=sys.stderr)
    return 0 if hits else 1


def _info(index: LocalIndex) -> int:
    manifest = index.manifest
    print(f"documents    {manifest.documents:,}")
    print(f"bytes        {manifest.bytes:,}")
    print(f"files        {len(manifest.files):,}, {sum(file.size for file in manifest.files):,} bytes")
    print(f"analyser     {manifest.analyser}")
    for field in fields(manifest.options):
        print(f"             {field.name}={getattr(manifest.options, field.name)}")
    print(f"versions     index format {manifest.format}, {manifest.engine}")
    print(f"fingerprint  {manifest.fingerprint}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    print(bench.machine(), flush=True)
    figures = bench.run(options.chunks, options.chunk_bytes, options.seed, options.folder)
    for name, value in figures.items():
        print(f"{name:32} {value:12,.3f}")
    if options.out:
        Path(options.out).write_text(json.dumps({"machine": bench.machine(), **figures}, indent=1) + "\n")
    return 0


def _index_options(options: argparse.Namespace) -> IndexOptions | None:
    """What the command line says; None when it says nothing, which takes an index as it is."""
    given = {field.name: getattr(options, field.name) for field in fields(IndexOptions)}
    given = {name: value for name, value in given.items() if value is not None}
    return IndexOptions(**given) if given else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxsearchrl.search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text)
        sub.add_argument("corpus", help="a file or a folder")
        sub.add_argument("--index_dir", default="", help="the index folder; default: CORPUS.index")
        return sub

    build = command("build", "build the index, or check that it is up to date")
    for field in fields(IndexOptions):
        name, help_text = f"--{field.name}", f"default: {field.default}"
        if isinstance(field.default, bool):
            build.add_argument(name, action=argparse.BooleanOptionalAction, help=help_text)
        else:
            build.add_argument(name, type=type(field.default), help=help_text)
    command("info", "what the index was made from")
    search = command("search", "rank documents by BM25")
    search.add_argument("query", help="plain words")
    grep = command("grep", "find documents by an RE2 pattern, in corpus order")
    grep.add_argument("pattern", help="RE2 syntax; upper and lower case are the same")
    grep.add_argument("--case_sensitive", action="store_true", help="they are not")
    grep.add_argument("--skip", type=_from_0, default=0, help="pass over so many matching documents first")
    for ranked in (search, grep):
        ranked.add_argument("-k", type=_from_1, default=10, help="how many documents to show; default: 10")
    read = command("read", "print one document")
    read.add_argument("id")
    read.add_argument("--around", type=_from_0, default=0, help="with so many chunks of the same source on either side")
    read.add_argument("--start", type=_from_0, default=0, help="the first character to show, from 0")
    read.add_argument("--chars", type=_from_1, help="how many characters to show; default: all")
    serve = command("serve", "answer searches over HTTP as Search-R1's server does (extra: server)")
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at; 0.0.0.0 for other machines too")
    serve.add_argument("--port", type=_from_0, default=8000, help="0 for any that is free; default: 8000")
    for name, default, help_text in (
        ("topk", 3, "documents a query, if a request does not say"),
        ("max_topk", 100, "the most that a request may ask for"),
        ("max_queries", 4096, "queries that a request may have"),
        ("max_query_chars", 10_000, "characters that a query may have"),
        ("threads", 8, "searches at once"),
    ):
        serve.add_argument(f"--{name}", type=_from_1, default=default, help=f"{help_text}; default: {default}")
    measure = commands.add_parser("bench", help="measure building, search, grep and read on generated text")
    measure.add_argument("--chunks", type=_from_1, default=20_000, help="how many; default: 20000")
    measure.add_argument("--chunk_bytes", type=_from_1, default=bench.CHUNK_BYTES, help="of each; default: 2000")
    measure.add_argument("--seed", type=_from_0, default=0)
    measure.add_argument("--folder", help="where the text and its index are for a while; default: the temporary folder")
    measure.add_argument("--out", help="a JSON file for the figures")
    return parser


def _from_0(text: str) -> int:
    return _count(text, 0)


def _from_1(text: str) -> int:
    return _count(text, 1)


def _count(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from {least} on")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
