"""Trains, evaluates or checks one experiment.

python -m jaxsearchrl.main --config=configs/demo.py --workdir=runs/demo

Single settings are replaced by --config.section.key=value, e.g. --config.train.steps=4. The same command resumes a run.
"""

import sys
from collections.abc import Sequence

from absl import flags

from jaxsearchrl import hosts
from jaxsearchrl.config import Config
from jaxsearchrl.config_checks import total_steps, validate
from jaxsearchrl.config_flags import Override, load_config, run_app
from jaxsearchrl.config_tree import to_json
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.run_folder import local_folder
from jaxsearchrl.runtime import announce_devices, prepare
from jaxsearchrl.tasks.inputs import check_prompt, read_tasks

_CONFIG = flags.DEFINE_string("config", None, "The experiment: a Python file with get_config() -> Config.")
_WORKDIR = flags.DEFINE_string("workdir", None, "The run folder; by default runs/ and the config's name.")
_MODE = flags.DEFINE_enum(
    "mode",
    "train",
    ["train", "eval", "sft", "export", "plan", "check"],
    "train; eval: evaluate only; sft: the supervised warm start only; export: the newest adapter merged into the base "
    "model, as a Hugging Face folder; plan: what the run would take on --topology, compiled without it; check: "
    "validate and print the settings.",
)
_TOPOLOGY = flags.DEFINE_string("topology", "", "For --mode=plan: v6e:2x4, v5e:1x1, h100, h100:2, t4, cpu, ...")
_PRICE = flags.DEFINE_float("price", 0.0, "For --mode=plan: what a chip costs for an hour.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "A tiny random model on a tiny generated corpus, for two steps.")
_REQUIRE_ACCELERATOR = flags.DEFINE_bool("require_accelerator", False, "Stop if JAX finds only a CPU.")

# The files that a mode cannot do without.
_REQUIRED = {
    "train": ("model.path", "task.corpus", "task.train_tasks"),
    "eval": ("model.path", "task.corpus", "task.eval_tasks"),
    "sft": ("model.path", "task.corpus", "task.train_tasks"),
    "export": ("model.path",),
    "plan": ("model.path",),
    "check": ("model.path", "task.corpus", "task.train_tasks"),
}


def main(overrides: Sequence[Override]) -> None:
    """Runs the mode that the flags name. Raises UserError for whatever its user can put right."""
    if _TOPOLOGY.value and _MODE.value != "plan":
        raise UserError(f"--topology={_TOPOLOGY.value} is for --mode=plan; a run takes the devices that are there")
    if _MODE.value != "check":
        prepare()  # before the dry run's model imports JAX
    if hosts.are_asked_for() and (_DRY_RUN.value or _MODE.value == "export"):
        what = "--dry_run: is" if _DRY_RUN.value else "--mode=export: merges files, on no device, and is"
        raise UserError(
            f"{what} for one process; start it on one host, that of the run folder, and unset JAX_COORDINATOR_ADDRESS, "
            "JAX_NUM_PROCESSES, JAX_PROCESS_ID and JAXSEARCHRL_HOSTS"
        )
    config, workdir = _experiment(overrides)
    if _MODE.value == "check":
        return _check(config)
    if _MODE.value == "export":
        from jaxsearchrl.export import export

        return export(config, workdir)
    if _MODE.value == "plan":
        from jaxsearchrl.planning.report import plan_run

        return plan_run(config, _TOPOLOGY.value, _PRICE.value)
    with hosts.joined():
        hosts.check_same({"settings": to_json(config)})
        announce_devices(require_accelerator=_REQUIRE_ACCELERATOR.value)
        from jaxsearchrl import evaluator, trainer

        start = {"train": trainer.train, "eval": evaluator.evaluate, "sft": trainer.sft}[_MODE.value]
        start(config, workdir)
    if _DRY_RUN.value:
        print(f"dry run: it ran to its end; its numbers mean nothing, and {workdir} can be deleted", file=sys.stderr)


def _check(config: Config) -> None:
    """Prints the settings, and reads the prompt and the tasks; says at last what they come to."""
    check_prompt(config.task)
    counts = {}
    for name, path in (("training", config.task.train_tasks), ("evaluation", config.task.eval_tasks)):
        if path not in ("", "demo"):
            counts[name] = len(read_tasks(config.task, path))
    print(to_json(config), end="")
    steps = f", for {total_steps(config.train, counts['training'])} steps" if "training" in counts else ""
    tasks = " and ".join(f"{count} {name} tasks" for name, count in counts.items())
    print(f"the settings are valid{f'; {tasks}{steps}' if tasks else ''}", file=sys.stderr)


def _experiment(overrides: Sequence[Override]) -> tuple[Config, str]:
    """The validated configuration and the run folder."""
    if not _CONFIG.value:
        raise UserError("--config is missing; e.g. --config=configs/demo.py")
    config = load_config(_CONFIG.value, overrides)
    workdir = _WORKDIR.value or f"runs/{config.name}{'-dry_run' if _DRY_RUN.value else ''}"
    if _DRY_RUN.value:
        from jaxsearchrl.dry_run import dry_run_config

        validate(config, check_files=False)
        config = dry_run_config(config, local_folder(workdir) / "dry_run")
    other_player = (config.eval.player, config.eval.adapter) != ("policy", "")
    if _MODE.value in ("train", "sft") and other_player:
        raise ConfigError(
            "eval.player and eval.adapter are for --mode=eval: a run in training evaluates its own policy"
        )
    required = _REQUIRED[_MODE.value]
    if _MODE.value == "eval" and config.eval.player != "policy" and config.model.tokenizer:
        required = tuple(key for key in required if key != "model.path")  # only tokens are counted
    evaluates = ("task.eval_tasks",) if _MODE.value in ("train", "sft", "check") and config.eval.every else ()
    # A plan needs no data, and of the model only what it asks for itself.
    validate(config, check_files=_MODE.value != "plan", required=(*required, *evaluates))
    return config, workdir


if __name__ == "__main__":
    run_app(main)
