"""Search a corpus from the command line.

python -m jaxsearchrl.search build  corpus.jsonl
python -m jaxsearchrl.search search corpus.jsonl "fast brooms" -k 5
python -m jaxsearchrl.search grep   corpus.jsonl "broom(s|stick)"
python -m jaxsearchrl.search read   corpus.jsonl 007
python -m jaxsearchrl.search serve  corpus.jsonl --port 8000
"""

import argparse
import os
import sys
from collections.abc import Sequence

from jaxsearchrl.errors import InfrastructureError, UserError
from jaxsearchrl.search.contract import BadPattern, Hit
from jaxsearchrl.search.index import LocalIndex, open_or_build
from jaxsearchrl.search.remote.search_r1 import TOKEN_VARIABLE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, 1 when nothing was found, 2 for an error."""
    options = _parser().parse_args(arguments)
    try:
        index = open_or_build(options.corpus, options.index_dir)
        if options.command == "build":
            print(f"{index.size} documents, fingerprint {index.fingerprint}")
            return 0
        if options.command == "serve":
            return _serve(index, options)
        if options.command == "search":
            return _show(index.search(options.query, options.k))
        if options.command == "grep":
            return _show(index.grep(options.pattern, options.k, case_sensitive=options.case_sensitive))
        document = index.read(options.id)
        if document is None:
            raise UserError(f"{options.corpus} has no document {options.id!r}")
        print(f"{document.title}\n{document.text}")
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


def _show(hits: Sequence[Hit]) -> int:
    for rank, hit in enumerate(hits, start=1):
        score = f"  {hit.score:8.4f}" if hit.score else ""  # grep has none
        print(f"{rank:3d}{score}  {hit.document.id}  {hit.document.title}")
        print("     " + " ".join(hit.snippet.split()))
    if not hits:
        print("no document matches", file=sys.stderr)
    return 0 if hits else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxsearchrl.search", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, help_text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text)
        sub.add_argument("corpus", help="a JSONL file")
        sub.add_argument("--index_dir", default="", help="the index folder; default: CORPUS.index")
        return sub

    command("build", "build the index, or check that it is up to date")
    search = command("search", "rank documents by BM25")
    search.add_argument("query", help="plain words")
    grep = command("grep", "find documents by an RE2 pattern, in corpus order")
    grep.add_argument("pattern", help="RE2 syntax; upper and lower case are the same")
    grep.add_argument("--case_sensitive", action="store_true", help="they are not")
    for ranked in (search, grep):
        ranked.add_argument("-k", type=int, default=10, help="how many documents to show; default: 10")
    command("read", "print one document").add_argument("id")
    serve = command("serve", "answer searches over HTTP as Search-R1's server does (extra: server)")
    serve.add_argument("--host", default="127.0.0.1", help="the address to listen at; 0.0.0.0 for other machines too")
    for name, default, help_text in (
        ("port", 8000, "0 for any that is free"),
        ("topk", 3, "documents a query, if a request does not say"),
        ("max_topk", 100, "the most that a request may ask for"),
        ("max_queries", 4096, "queries that a request may have"),
        ("max_query_chars", 10_000, "characters that a query may have"),
        ("threads", 8, "searches at once"),
    ):
        serve.add_argument(f"--{name}", type=int, default=default, help=f"{help_text}; default: {default}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
