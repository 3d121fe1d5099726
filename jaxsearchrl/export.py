"""`--mode=export`: the newest adapter of a run, merged into its base model."""

import shutil
from pathlib import Path

from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.config import Config
from jaxsearchrl.errors import UserError
from jaxsearchrl.experiment import resolve_demo
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.merged import write_merged
from jaxsearchrl.models.peft_adapter import CONFIG, read_adapter
from jaxsearchrl.run_folder import RunFolder
from jaxsearchrl.telemetry.progress import Progress


def export(config: Config, workdir: str) -> None:
    """Writes merged/step_n into the run folder: a Hugging Face folder with the tokenizer of the run.

    Nothing is computed on an accelerator. Raises UserError without an adapter, or for one that is not the model's.
    """
    config = resolve_demo(config)
    progress = Progress()
    with RunFolder(workdir) as run:
        adapters = sorted(path.parent for path in run.adapters.glob(f"step_*/{CONFIG}"))
        if not adapters:
            raise UserError(f"{run.path}: has no adapter to export; train first, or name another --workdir")
        base = Path(config.model.path).expanduser()
        checkpoint = open_checkpoint(base)
        adapter, lora = read_adapter(adapters[-1], checkpoint.architecture)
        folder, unfinished = run.path / "merged" / adapters[-1].name, run.path / "merged" / ".unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        with progress.phase(f"merging {adapters[-1].name}", total=len(checkpoint.names())) as advance:
            write_merged(unfinished, base, checkpoint, adapter, lora.alpha / lora.rank, advance)
        if config.model.tokenizer or base.is_file():
            load_tokenizer(config.model.tokenizer or base).save_pretrained(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
        progress.note(f"the merged model is in {folder}")
