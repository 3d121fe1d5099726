"""What run folders show. Nothing is sampled; only `judge` needs a model (behind an API), only `retrieval` the corpus.

python -m jaxsearchrl.evaluation report runs/a runs/b --output=reports
python -m jaxsearchrl.evaluation rescore runs/a --config.task.beta=1
python -m jaxsearchrl.evaluation retrieval runs/a -k 3
python -m jaxsearchrl.evaluation judge runs/a --url=http://127.0.0.1:8000/v1 --model=NAME

A folder is one of --workdir, or one that --mode=eval left in evaluations/.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from jaxsearchrl.config import EndpointConfig, GSM8KConfig
from jaxsearchrl.config_flags import Override, split_overrides
from jaxsearchrl.config_tree import leaf_types, parse_value, unknown_key, with_values
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.evaluation.judge import judge, unjudged
from jaxsearchrl.evaluation.judgements import JUDGED, check_model, unsolved
from jaxsearchrl.evaluation.page import Table, as_html, as_markdown, table_lines
from jaxsearchrl.evaluation.rescore import rescore
from jaxsearchrl.evaluation.retrieval import missed, recall_at
from jaxsearchrl.evaluation.run_data import RunData, labelled, read_run
from jaxsearchrl.evaluation.sections import judgement_tables, sections
from jaxsearchrl.records import read_records, record_steps
from jaxsearchrl.rollouts.endpoint import Endpoint
from jaxsearchrl.run_folder import write_atomically
from jaxsearchrl.telemetry.progress import Progress


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, or 2 for an error."""
    try:
        rest, overrides = split_overrides(sys.argv[1:] if arguments is None else arguments)
        options = _parser().parse_args(rest)
        if options.command == "report":
            _refuse(overrides)
            _report(labelled(options.runs), Path(options.output), options.price)
        elif options.command == "judge":
            _refuse(overrides)
            _judge(read_run(options.run), EndpointConfig(options.url, options.model), options)
        elif options.command == "rescore":
            _rescore(read_run(options.run), options.split, overrides)
        else:
            _retrieval(_with(read_run(options.run), overrides), options.k)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _report(runs: Sequence[RunData], output: Path, price: float | None) -> None:
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"--price={price}: must be a number from 0 on, of the machine and hour")
    title = f"{', '.join(run.label for run in runs)}: what was shown"
    content = sections(runs, price)
    output.mkdir(parents=True, exist_ok=True)
    for name, text in (("report.html", as_html(title, content)), ("report.md", as_markdown(title, content))):
        write_atomically(output / name, text.encode("utf-8", "replace"))
        print(output / name)


def _rescore(run: RunData, split: str, overrides: Sequence[Override]) -> None:
    if not overrides:
        raise UserError("say what to change, e.g. --config.task.beta=1")
    after = _with(run, overrides).config.task
    steps = record_steps(run.folder, split)
    if not steps:
        raise UserError(f"{run.folder} has no rollouts of {split!r}")
    rows = []
    for step in steps:
        found = rescore(read_records(run.folder, split, step), run.config.task, after)
        rows.append(
            [
                str(step), f"{found.mean_before:.3f}", f"{found.mean:.3f}", f"{found.tied_before} of {found.groups}",
                _listed(found.separated), _listed(found.tied), f"{found.moved:.3f}", f"{found.turned:.0%}",
                f"{found.spearman:.3f}", f"{found.kendall:.3f}",
            ]
        )  # fmt: skip
    header = ["step", "reward", "becomes", "tied groups", "separated", "newly tied", "advantage moves", "changes sign"]
    print("\n".join(table_lines(Table([*header, "Spearman", "Kendall"], rows))))


def _retrieval(run: RunData, k: int) -> None:
    from jaxsearchrl.experiment import resolve_demo
    from jaxsearchrl.search.index import open_or_build

    options = resolve_demo(run.config).task
    if isinstance(options, GSM8KConfig):
        raise UserError(f"{run.folder}: GSM8K has no searches")
    if not run.evaluations:
        raise UserError(f"{run.folder} has no evaluated episodes")
    if k < 1:
        raise UserError(f"-k {k}: at least one document must be looked at")
    index = open_or_build(options.corpus, options.index_dir)
    for step, records in run.evaluations.items():
        found = recall_at(k, records, options, index)
        searched = found.queries.tries if found else 0
        tasks = f", of {found.queries.tasks} tasks" if found else ""
        print(f"step {step}: {searched} of {sum(not r.failed for r in records)} scored episodes searched{tasks}")
        rows = []
        if found:
            recalls = {
                f"recall@{k} of the policy's queries": found.queries,
                f"recall@{k} of the raw question": found.question,
                "the raw question, as many documents": found.question_as_many,
                "the queries minus that": found.change,
            }
            rows = [(name, f"{recall.mean:6.3f} ({recall.interval})") for name, recall in recalls.items()]
        rows += [(f"facts {place}", f"{count:6d}") for place, count in missed(records, options, index).items()]
        for name, value in rows:
            print(f"  {name:{max(len(name) for name, _ in rows)}} {value}")


def _judge(run: RunData, config: EndpointConfig, options: argparse.Namespace) -> None:
    records = unsolved(run.evaluations)
    if not records:
        raise UserError(f"{run.folder} has no evaluated episode that failed in a search")
    if options.limit < 0 or options.threads < 1 or options.max_tokens < 1:
        raise UserError("--limit must be 0 or more, --threads and --max_tokens at least 1")
    check_model(config.model, "--model")
    endpoint = Endpoint(config, options.max_tokens, tries=4)
    chosen = records[: options.limit or None]
    if unjudged(chosen, config.model, run.folder):
        endpoint.check()
    try:
        with Progress().phase("judging", total=len(chosen)) as advance:
            found, faults = judge(chosen, endpoint, config.model, run.folder, options.threads, advance)
    except KeyboardInterrupt:
        raise UserError("stopped; the same command goes on") from None
    for block in judgement_tables(run):
        print(block if isinstance(block, str) else "\n".join(table_lines(block)), end="\n\n")
    print(f"{len(found)} judgements by {config.model} are in {run.folder / JUDGED}")
    if faults:
        raise UserError(f"{len(faults)} episodes are not judged ({faults[0]}); the same command asks for them again")


def _with(run: RunData, overrides: Sequence[Override]) -> RunData:
    config, types = run.config, leaf_types(run.config)
    for key, text in overrides:
        if not key.startswith("task.") or key == "task.name":
            raise ConfigError(f"{key}: stored rollouts can be looked at under other settings of the task only (task.…)")
        if key not in types:
            raise ConfigError(unknown_key(key, types))
        config = with_values(config, {key: parse_value(key, types[key], text)})
    return replace(run, config=config)


def _refuse(overrides: Sequence[Override]) -> None:
    if overrides:
        raise ConfigError(f"--config.{overrides[0][0]}: a report shows what was run; only `rescore` takes settings")


def _listed(groups: Sequence[int]) -> str:
    return ", ".join(map(str, groups)) or "none"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jaxsearchrl.evaluation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    report = commands.add_parser("report", help="one or several runs side by side, as report.html and report.md")
    report.add_argument("runs", nargs="+", metavar="RUN", help="run folders; the others are compared with the first")
    report.add_argument("--price", type=float, help="of an hour of the machine; default: no cost is shown")
    report.add_argument("--output", default="reports", help="the folder to write to; default: reports")
    rewards = commands.add_parser("rescore", help="stored rollouts under another reward: --config.task.KEY=VALUE")
    rewards.add_argument("run", metavar="RUN")
    rewards.add_argument("--split", default="train", help="train, eval, ...; default: train")
    found = commands.add_parser("retrieval", help="the retriever or the policy? (opens the run's corpus)")
    found.add_argument("run", metavar="RUN")
    found.add_argument("-k", type=int, default=3, help="documents of a query; default: 3")
    asked = commands.add_parser("judge", help="why episodes failed, by a model behind an OpenAI-compatible API")
    asked.add_argument("run", metavar="RUN")
    asked.add_argument("--url", required=True, help="up to what precedes /chat/completions")
    asked.add_argument("--model", required=True, help="the server's name of the judge")
    asked.add_argument("--limit", type=int, default=0, help="the first so many unsolved episodes only; 0: all")
    asked.add_argument("--threads", type=int, default=8, help="requests at a time; default: 8")
    asked.add_argument("--max_tokens", type=int, default=2048, help="of an answer, with its reasoning; default: 2048")
    return parser


if __name__ == "__main__":
    sys.exit(main())
