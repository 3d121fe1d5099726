"""GSM8K: grade-school arithmetic, whose worked answers end in a line such as `#### 72`. Only that number is kept.

`dev.jsonl` is 200 training questions, drawn by the seed and held out of `train.jsonl`.
"""

import functools
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxsearchrl.data.input_files import SPLITS, Input, Published, find_input
from jaxsearchrl.data.prepared_folder import prepare_folder
from jaxsearchrl.data.question_files import Unusable, copy_lines, describe, read_questions, write_questions
from jaxsearchrl.errors import UserError
from jaxsearchrl.rewards.numeric import gsm8k_gold
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.text import well_formed

VERSION = 1  # raised whenever this code changes what is written
SOURCE = "gsm8k"
DEV = 200
NOTE = (
    "dev.jsonl is drawn from the training questions and held out of train.jsonl; also_in_train counts questions whose "
    "text train.jsonl has as well"
)
PUBLISHED = Published(
    hub_id="openai/gsm8k",
    folder="main",
    advice="""Without the hub: on a machine that reaches it, download from
https://huggingface.co/datasets/openai/gsm8k/tree/main/main
    train-00000-of-00001.parquet   7,473 questions
    test-00000-of-00001.parquet    1,319 questions
(a few MB together), put both into one folder here, and give --input=THAT_FOLDER.""",
)


def prepare_gsm8k(given: str, output: str | Path, seed: int = 42) -> dict[str, Any]:
    """Fills the folder `output` from the input that `given` names (see `find_input`), and returns its manifest.

    Raises UserError naming the file, row and column of what cannot be used, and for a folder of another input.
    """
    found = find_input(given, PUBLISHED)
    found.check_output(Path(output))
    recipe = {"data_set": "gsm8k", "version": VERSION, "seed": seed, "input": found.fingerprint()}
    return prepare_folder(Path(output), recipe, lambda folder: _write(found, given, folder, seed))


def _write(found: Input, given: str, folder: Path, seed: int) -> dict[str, Any]:
    counts, dropped = {}, {}
    pool = {"train": folder / "pool.jsonl", "test": folder / "test.jsonl"}
    for split in SPLITS:
        make = functools.partial(_question, split)
        questions, dropped[split] = read_questions(found.files[split], (("question",), ("answer",)), [], make)
        counts[split] = len(write_questions(pool[split], questions).get(SOURCE, ()))
    if counts["train"] <= DEV or not counts["test"]:
        left_out = "; ".join(f"{split}: {count:,} {why}" for split in SPLITS for why, count in dropped[split].items())
        raise UserError(
            f"{given}: {counts['train']} usable questions to train on and {counts['test']} to test on; at least "
            f"{DEV + 1} and 1 are needed. Rows left out: {left_out or 'none'}"
        )
    held_out = random.Random(seed).sample(range(counts["train"]), DEV)
    rest = sorted(set(range(counts["train"])) - set(held_out))
    copy_lines(pool["train"], {folder / "dev.jsonl": held_out, folder / "train.jsonl": rest})
    return {
        "input": {"given": given, "revision": found.revision},
        "note": NOTE,
        "dropped": dropped,
        "files": describe(folder / "train.jsonl", [folder / "dev.jsonl", folder / "test.jsonl"]),
    }


def _question(split: str, number: int, row: Mapping[str, Any], where: str) -> Question:
    for column in ("question", "answer"):
        if not isinstance(row[column], str | None):
            raise UserError(f'{where}: "{column}" must be a text, found {type(row[column]).__name__}')
    query = well_formed(row["question"] or "").strip()
    if not query:
        raise Unusable("no question")
    try:
        gold = gsm8k_gold(row["answer"] or "")
    except ValueError:
        raise Unusable("no number after ####") from None
    return Question(f"{SOURCE}:{split}_{number}", query, (gold,), SOURCE)
