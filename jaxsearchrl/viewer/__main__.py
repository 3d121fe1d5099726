"""Shows what the agent did.

python -m jaxsearchrl.viewer --workdir=runs/demo
"""

import sys
from collections.abc import Sequence

from absl import flags

from jaxsearchrl.config_flags import Override, run_app
from jaxsearchrl.errors import ConfigError, UserError
from jaxsearchrl.viewer.runs import find_runs
from jaxsearchrl.viewer.server import ViewerServer
from jaxsearchrl.viewer.site import Site
from jaxsearchrl.viewer.terminal import print_text, text_of
from jaxsearchrl.viewer.write_site import write_site

_WORKDIR = flags.DEFINE_string("workdir", None, "A run folder, or a folder of several.")
_HOST = flags.DEFINE_string("host", "localhost", "The address to listen on; 0.0.0.0 shows the runs to the network.")
_PORT = flags.DEFINE_integer("port", 8400, "The port to listen on; 0 for any free one.")
_TEXT = flags.DEFINE_string(
    "text",
    None,
    "Prints to the terminal instead: SPLIT/STEP (train/3) for a step's tries, SPLIT/STEP/NUMBER (train/3/17) for one. "
    "In a folder of several runs, with the run's path in front.",
)
_EXPORT = flags.DEFINE_string(
    "export", None, "Writes all pages into this new folder instead; no server is needed then."
)


def main(overrides: Sequence[Override]) -> None:
    """Serves, prints or writes what the flags name. Raises UserError for whatever its user can put right."""
    if overrides:
        raise ConfigError(f"--config.{overrides[0][0]}: the explorer takes no settings; it reads those of the run")
    if not _WORKDIR.value:
        raise UserError("--workdir is missing; e.g. --workdir=runs/demo")
    if _TEXT.value is not None:
        print_text(text_of(find_runs(_WORKDIR.value), _TEXT.value, colour=sys.stdout.isatty()))
    elif _EXPORT.value is not None:
        count, faults = write_site(Site(_WORKDIR.value, exported=True), _EXPORT.value)
        print(f"{count} files in {_EXPORT.value}; open index.html")
        if faults:
            print(f"{faults} of them say why a record cannot be shown", file=sys.stderr)
    else:
        _serve()


def _serve() -> None:
    server = ViewerServer(Site(_WORKDIR.value or ""), _HOST.value, _PORT.value)
    print(f"{len(server.site.runs)} run{'s' * (len(server.site.runs) > 1)} at {server.address} (stop with Ctrl-C)")
    sys.stdout.flush()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print()


if __name__ == "__main__":
    run_app(main)
