"""`--mode=export`: the newest adapter of a run, merged into its base model."""

import shutil
from pathlib import Path

from safetensors import SafetensorError

from jaxsearchrl.chat.tokenizer import load_tokenizer
from jaxsearchrl.config import Config
from jaxsearchrl.config_checks import check_resume
from jaxsearchrl.config_tree import from_json
from jaxsearchrl.errors import UserError
from jaxsearchrl.experiment import resolve_demo
from jaxsearchrl.models.files import open_checkpoint
from jaxsearchrl.models.hf_config import check_describable
from jaxsearchrl.models.merged import write_merged
from jaxsearchrl.models.peft_adapter import CONFIG, read_adapter
from jaxsearchrl.run_folder import RunFolder
from jaxsearchrl.telemetry.progress import Progress


def exported(run: RunFolder) -> dict[int, Path]:
    """The folders of a run's adapters, by step."""
    return {int(path.parent.name[5:]): path.parent for path in run.adapters.glob(f"step_[0-9]*/{CONFIG}")}


def export(config: Config, workdir: str) -> None:
    """Writes merged/step_n into the run folder: a Hugging Face folder with the tokenizer of the run.

    Nothing is computed on an accelerator. Raises UserError without an adapter, for a model that is not the run's, and
    when the folder cannot be written.
    """
    progress = Progress()
    with RunFolder(workdir) as run:
        adapters = exported(run)
        if not adapters:
            raise UserError(f"{run.path}: has no adapter to export; train first, or name another --workdir")
        if stored := run.read_config():
            where = str(run.path / "config.json")
            check_resume(from_json(Config, stored, where), config, where, trains=False)
        config = resolve_demo(config)
        newest, base = adapters[max(adapters)], Path(config.model.path).expanduser()
        checkpoint = open_checkpoint(base)
        if base.is_file():
            check_describable(checkpoint.architecture, str(base))
        tokenizer = load_tokenizer(config.model.tokenizer or base) if config.model.tokenizer or base.is_file() else None
        adapter, lora = read_adapter(newest, checkpoint.architecture)
        folder, unfinished = run.path / "merged" / newest.name, run.path / "merged" / ".unfinished"
        try:
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            with progress.phase(f"merging {newest.name}", total=len(checkpoint.names())) as advance:
                write_merged(unfinished, base, checkpoint, adapter, lora.alpha / lora.rank, advance)
            if tokenizer:
                tokenizer.save_pretrained(unfinished)
            shutil.rmtree(folder, ignore_errors=True)
            unfinished.rename(folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise UserError(f"{folder}: cannot be written ({error})") from error
        progress.note(f"the merged model is in {folder}")
