"""The passages of Search-R1: Wikipedia of December 2018 in 21 million pieces, and their search index."""

import os
import shutil
from pathlib import Path

from jaxsearchrl.data.input_files import download, is_hub_id, looked_up
from jaxsearchrl.errors import UserError
from jaxsearchrl.search.index import LocalIndex, open_or_build

FILE = "wiki-18.jsonl.gz"
ADVICE = f"""Without the hub: on a machine that reaches it, download from
https://huggingface.co/datasets/PeterJinGo/wiki-18-corpus
    {FILE}   about 21 million passages, 5.1 GB
and give --input=THAT_FILE."""


def prepare_wiki18(given: str, output: Path) -> LocalIndex:
    """Fills the folder `output` with the passages, as they were published, and their index; returns it.

    given: the file, a folder that has it, or OWNER/NAME[@REVISION] on the hub. Run again after it was stopped, it goes
    on. Raises UserError for an input that is not there, and where another file has the name already.
    """
    with looked_up(given):
        source = _find(given)
        corpus = output / FILE
        output.mkdir(parents=True, exist_ok=True)
        if not corpus.exists():
            _link(source, corpus)
        elif not os.path.samefile(source, corpus) and source.stat().st_size != corpus.stat().st_size:
            raise UserError(
                f"{corpus} is there and has another size than {source}: delete it, or choose another --output"
            )
    return open_or_build(corpus)


def _find(given: str) -> Path:
    path = Path(given).expanduser()
    if path.is_dir():
        path /= FILE
    elif not path.exists() and is_hub_id(given):
        path = download(given, [FILE], ADVICE) / FILE
    if not path.is_file():
        raise UserError(f"--input={given}: {path} is no file.\n{ADVICE}")
    return path.resolve()


def _link(source: Path, target: Path) -> None:
    """A second name for the file, where the file system allows it; else a copy, which is whole when it has the name."""
    try:
        os.link(source, target)
    except OSError:
        partial = target.with_name(f"{target.name}.part")
        shutil.copyfile(source, partial)
        partial.replace(target)
