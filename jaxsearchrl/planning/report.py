"""`--mode=plan`: a config's programs compiled for chips that are not there, and what follows, as text."""

import math
from collections.abc import Iterator

import jax

from jaxsearchrl.config import Config
from jaxsearchrl.errors import UserError
from jaxsearchrl.models.architecture import Architecture, check_context
from jaxsearchrl.models.config_file import read_architecture
from jaxsearchrl.models.sharding import AXES
from jaxsearchrl.planning.estimate import Phases, count_phases, estimate_run, longest_episode, roofline
from jaxsearchrl.planning.plan import Advice, Plan, advise, make_plan, model_of, on_chips
from jaxsearchrl.planning.targets import GIB, Target, find_target
from jaxsearchrl.telemetry.progress import Progress

_ROOFLINE = "a roofline, not a measurement"


def plan_run(config: Config, topology: str, price: float) -> None:
    """Prints the plan; progress goes to stderr. price: of a chip and hour, 0 where it does not matter.

    Needs no accelerator, and of the model its config.json. Raises UserError for a topology that is not known, whose
    compiler is not installed, and for a model that is no such thing.
    """
    if not 0 <= price < math.inf:
        raise UserError(f"--price={price}: must be a number from 0 on, of a chip and hour")
    target = find_target(topology)
    arch = read_architecture(_model_path(config))
    check_context(arch, config.sampling.capacity)
    jax.config.update("jax_platforms", "cpu")  # where no accelerator is, its plugin must not look for one
    jax.config.update("jax_enable_compilation_cache", False)  # it cannot load what was compiled for absent chips
    model = model_of(arch, config)
    config = on_chips(config, model, target)
    plan, arrays = make_plan(model, config, target, Progress())
    print(write_report(plan, count_phases(model, config, arrays), arch, config, target, price))


def _model_path(config: Config) -> str:
    if config.model.path != "demo":
        return config.model.path
    from jaxsearchrl.data.assets import fetch_smollm2

    return str(fetch_smollm2())


def write_report(
    plan: Plan, phases: Phases, arch: Architecture, config: Config, target: Target, price: float = 0.0
) -> str:
    """Bytes, programs, whether it fits and what to change, phases, times and cost, as Markdown."""
    chips = f"{target.chips} chip{'s' if target.chips > 1 else ''}"
    chips += f" of {target.hosts} hosts" if target.hosts > 1 else ""
    lines = [
        f"# {config.name} on {target.name}",
        "",
        f"{chips}, {_cut(config)}, jax {jax.__version__}. Compiled from shapes alone: nothing was run.",
        *("", "| a chip holds | GiB |", "|---|---|"),
        *(f"| {_held(name, config)} | {_gib(size)} |" for name, size in plan.held.items()),
        *(f"| {name}, while it learns | {_gib(size)} |" for name, size in plan.learning.items()),
        *("", *_programs(plan), "", *_verdict(plan, config, target), ""),
    ]
    if not plan.fits(target.chip.memory):
        lines += [*_advice(list(advise(plan, arch, config, target)), plan, target), ""]
    return "\n".join([*lines, *_times(plan, phases, config, target, price)])


def _cut(config: Config) -> str:
    sizes = [f"mesh.{axis}={getattr(config.mesh, axis)}" for axis in AXES if getattr(config.mesh, axis) != 1]
    return " ".join(sizes) or "nothing cut"


def _held(name: str, config: Config) -> str:
    return f"{name}, {config.sampling.slots} slots" if name == "cache" else name


def _programs(plan: Plan) -> Iterator[str]:
    """A line for each program; what the TPU's compiler estimates only where it does for one."""
    programs = {**plan.sampler, **plan.learner}
    timed = any(program.estimate for program in programs.values())
    yield f"| program, GiB beside what is held | outputs | temporaries |{' compiler, s |' if timed else ''}"
    yield f"|---|---|---|{'---|' if timed else ''}"
    for name, program in programs.items():
        seconds = "" if not timed else f" {program.estimate:.2g} |" if program.estimate else " |"
        if program.error:
            yield f"| {name} | does not compile | |{seconds}"
        else:
            yield f"| {name} | {_gib(program.outputs - program.aliased)} | {_gib(program.temporaries)} |{seconds}"


def _verdict(plan: Plan, config: Config, target: Target) -> Iterator[str]:
    chip, total = target.chip, plan.total
    for name, error in plan.errors.items():
        yield f"{name} does not compile: {' '.join(error.split())[:400]}"
    verdict = "fits" if plan.fits(chip.memory) else "does not fit"
    yield f"In all {_gib(total)} GiB of {_gib(chip.memory)} usable on a chip: it {verdict}."
    if plan.fits(chip.memory) and total > chip.by_default:
        yield (
            f"JAX takes only {_gib(chip.by_default)} GiB of a GPU's memory unless it is told: set "
            "XLA_PYTHON_CLIENT_MEM_FRACTION=0.95."
        )


def _advice(advice: list[Advice], plan: Plan, target: Target) -> Iterator[str]:
    """The changes in order, each with what it saves by itself."""
    if not advice:
        yield "No single setting saves memory here: take a smaller model or a larger chip."
        return
    yield "What to change, in the order to try it (each by itself; by arithmetic, temporaries taken as they are):"
    for number, change in enumerate(advice, 1):
        left = plan.total - change.saves
        enough = not plan.errors and left <= target.chip.memory
        yield f"{number}. {change.change} saves {_gib(change.saves)} GiB, which leaves {_gib(left)}: " + (
            "it fits" if enough else "not enough alone"
        )


def _times(plan: Plan, phases: Phases, config: Config, target: Target, price: float) -> Iterator[str]:
    """FLOPs and bytes of each phase; times only of a chip whose rates are known."""
    chip, known = target.chip, target.chip.bandwidth > 0
    times = roofline(phases, chip, plan.learner["update"]) if known else None
    names = {
        "prefill": "prefill, a token",
        "decode": f"decode, a step of {config.sampling.slots} slots",
        "row": f"learner, a row of {config.learning.pack_tokens} tokens",
    }
    yield f"| phase, on one chip, counted by hand | FLOPs | bytes |{f' s ({_ROOFLINE}) |' if known else ''}"
    yield f"|---|---|---|{'---|' if known else ''}"
    for key, name in names.items():
        work = getattr(phases, key)
        yield f"| {name} | {work.flops:.3g} | {work.bytes:.3g} |{f' {getattr(times, key):.2g} |' if known else ''}"
    if not chip.has_bfloat16 and config.model.weights_dtype == "bfloat16":
        yield ""
        yield f"A {target.kind} has no bfloat16: XLA computes in float32 there, though the weights take half the bytes."
    if times is None:
        return
    run, episode, train = estimate_run(config, times), longest_episode(config), config.train
    yield ""
    yield (
        f"Episodes that fill their slots ({episode.tokens} tokens, {episode.sampled} of them sampled), by {_ROOFLINE}, "
        "without tools, host and what chips send each other:"
    )
    sampled, tokens = _figure(run.sampled_per_second), _figure(run.tokens_per_second)
    yield f"* {sampled} sampled tokens a second while it decodes, {tokens} tokens a second over a step"
    yield (
        f"* a step of {train.groups_per_step} x {train.group_size}: {_figure(run.rollouts)} s of rollouts and "
        f"{_figure(run.learning)} s of learning; an evaluation: {_figure(run.evaluation)} s"
    )
    yield f"* {train.steps} steps with their evaluations: {_figure(run.hours)} hours" + (
        f", {run.hours * target.chips * price:.2f} at {price:g} a chip and hour" if price else ""
    )


def _figure(value: float) -> str:
    """Three digits that count."""
    return f"{float(f'{value:.3g}'):,.15g}"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"
