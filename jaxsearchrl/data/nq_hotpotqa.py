"""The questions of Search-R1: Natural Questions and HotpotQA to train on, seven benchmarks to evaluate on.

`dev.jsonl` and the two files of 500 are drawn from the test pool, and no question is in two of them. The draw is one
`random.Random(seed)` that shuffles the lines of source after source, by name: the first ten are dev's, the next 500 the
subset's. Dev is drawn as llm-agent-rl-lab (github.com/KMnO4-zx) draws its 70 questions.
"""

import functools
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxsearchrl.data.input_files import SPLITS, Input, Published, find_input
from jaxsearchrl.data.prepared_folder import prepare_folder
from jaxsearchrl.data.question_files import Unusable, copy_lines, describe, read_questions, write_questions
from jaxsearchrl.errors import UserError
from jaxsearchrl.tasks.questions import Question
from jaxsearchrl.text import well_formed

VERSION = 1  # raised whenever this code changes what is written
SOURCES = {
    "train": ("hotpotqa", "nq"),
    "test": ("2wikimultihopqa", "bamboogle", "hotpotqa", "musique", "nq", "popqa", "triviaqa"),
}
DEV_EACH = 10  # dev's questions of each source
SUBSET = 500
SUBSETS = {"hotpotqa": "hotpotqa_dev_500.jsonl", "nq": "nq_dev_500.jsonl"}
NOTE = (
    "dev.jsonl, nq_dev_500.jsonl and hotpotqa_dev_500.jsonl are drawn from the test pool, share no line with each "
    "other, and are in test.jsonl too; also_in_train counts questions whose text train.jsonl has as well"
)
PUBLISHED = Published(
    hub_id="PeterJinGo/nq_hotpotqa_train",
    folder="",
    advice="""Without the hub: on a machine that reaches it, download from
https://huggingface.co/datasets/PeterJinGo/nq_hotpotqa_train
    train.parquet   169,615 questions, 356 MB
    test.parquet     51,713 questions, 70 MB
(or from its mirror https://modelscope.cn/datasets/zhuangzhuang2023/nq_hotpotqa_train, revision
aa2da0496c1b1a50a66af7acabdf09c07a0cb79e), put both into one folder here, and give --input=THAT_FOLDER.
The passages that they are asked about are another download, which this command does not need:
python -m jaxsearchrl.data wiki18.""",
)

_NEEDED = (("question",), ("data_source",), ("golden_answers", "reward_model"))


def prepare_nq_hotpotqa(given: str, output: str | Path, seed: int = 42) -> dict[str, Any]:
    """Fills the folder `output` from the input that `given` names (see `find_input`), and returns its manifest.

    Raises UserError naming the file, row and column of what cannot be used, and for a folder of another input.
    """
    found = find_input(given, PUBLISHED)
    found.check_output(Path(output))
    recipe = {"data_set": "nq_hotpotqa", "version": VERSION, "seed": seed, "input": found.fingerprint()}
    return prepare_folder(Path(output), recipe, lambda folder: _write(found, given, folder, seed))


def _write(found: Input, given: str, folder: Path, seed: int) -> dict[str, Any]:
    lines, dropped, ids = {}, {}, {}
    for split in SPLITS:
        make = functools.partial(_question, split, ids)
        questions, dropped[split] = read_questions(found.files[split], _NEEDED, ["id"], make)
        lines[split] = write_questions(folder / f"{split}.jsonl", questions)
        _check_counts(split, lines[split], found.files[split])
    chosen = {folder / name: order for name, order in draw(lines["test"], seed).items()}
    copy_lines(folder / "test.jsonl", chosen)
    return {
        "input": {"given": given, "revision": found.revision},
        "note": NOTE,
        "dropped": dropped,
        "files": describe(folder / "train.jsonl", [*chosen, folder / "test.jsonl"]),
    }


def draw(lines: Mapping[str, Sequence[int]], seed: int) -> dict[str, list[int]]:
    """The line numbers of each drawn file, given those of each source in the test pool."""
    rng = random.Random(seed)
    drawn: dict[str, list[int]] = {"dev.jsonl": []}
    for source in sorted(lines):
        order = list(lines[source])
        rng.shuffle(order)
        drawn["dev.jsonl"] += order[:DEV_EACH]
        if source in SUBSETS:
            drawn[SUBSETS[source]] = order[DEV_EACH : DEV_EACH + SUBSET]
    return drawn


def _check_counts(split: str, lines: Mapping[str, Sequence[int]], paths: Sequence[Path]) -> None:
    for source in SOURCES[split]:
        needed = 1 if split == "train" else DEV_EACH + (SUBSET if source in SUBSETS else 0)
        count = len(lines.get(source, ()))
        if count < needed:
            raise UserError(
                f"{', '.join(map(str, paths))}: {count} usable questions of {source} in the {split} split, at least "
                f"{needed} are needed; is this the whole data set?"
            )


def _question(split: str, ids: dict[str, int], number: int, row: Mapping[str, Any], where: str) -> Question:
    """ids: how many questions wanted an id so far, over all splits."""
    query, answers, source = _query(row, where), _answers(row, where), row["data_source"]
    if source not in SOURCES[split]:
        wanted = ", ".join(SOURCES[split])
        raise UserError(f'{where}: "data_source" is {source!r}; the {split} split holds only {wanted}')
    label = row.get("id")
    if isinstance(label, float) and label.is_integer():  # what pandas makes of whole numbers where some are missing
        label = int(label)
    if label is None or label != label or (isinstance(label, str) and not label.strip()):
        label = f"{split}_{number}"
    elif not isinstance(label, str | int) or isinstance(label, bool):
        raise UserError(f'{where}: "id" must be a text or a whole number, found {type(label).__name__}')
    label = well_formed(str(label)).strip()
    return Question(_unique(f"{source}:{label}", ids), query, answers, source)


def _unique(wanted: str, ids: dict[str, int]) -> str:
    """`wanted`, or, where it is taken, that with #2, #3, …: the same rows in the same order get the same ids."""
    id = wanted
    while id in ids:
        ids[wanted] += 1
        id = f"{wanted}#{ids[wanted]}"
    ids[id] = 1
    return id


def _query(row: Mapping[str, Any], where: str) -> str:
    text = row["question"]
    if not isinstance(text, str | None):
        raise UserError(f'{where}: "question" must be a text, found {type(text).__name__}')
    text = well_formed(text or "").strip()
    if not text:
        raise Unusable("no question")
    return text if text.endswith(("?", "\uff1f")) else text + "?"  # also the full-width one


def _answers(row: Mapping[str, Any], where: str) -> tuple[str, ...]:
    texts = _texts(row.get("golden_answers"), f'{where}: "golden_answers"')
    if not texts:
        model = row.get("reward_model") or {}
        if not isinstance(model, dict):
            raise UserError(f'{where}: "reward_model" must be an object, found {type(model).__name__}')
        truth = model.get("ground_truth")
        truth = truth.get("target") if isinstance(truth, dict) else truth
        texts = _texts(truth, f'{where}: "reward_model.ground_truth"')
    if not texts:
        raise Unusable("no answer")
    return tuple(dict.fromkeys(texts))


def _texts(value: Any, where: str) -> list[str]:
    """What is not blank of a text, a number, or a list of them, nested or not. Such columns hold all of it."""
    if value is None or value != value:  # NaN is how pandas writes that nothing is there
        return []
    if isinstance(value, list):
        return [text for item in value for text in _texts(item, where)]
    if isinstance(value, float) and value.is_integer():  # 1912 in a column that pandas made one of floats
        value = int(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool) and value not in (math.inf, -math.inf):
        text = well_formed(str(value)).strip()
        return [text] if text else []
    raise UserError(f"{where} holds {value!r}; an answer must be a text or a number")
