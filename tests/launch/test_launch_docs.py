"""docs/launch.md shows what the scripts print: JAXSEARCHRL_WRITE_DOCS=1 writes it anew."""

import os
import re
import shlex
import textwrap

from tests.launch.conftest import ROOT, Project

DOCUMENT = ROOT / "docs/launch.md"
SHOWN = re.compile(r"(<!-- launch/(\w+\.sh) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def test_the_dry_runs_shown_are_those_of_the_scripts(tmp_path, clone):
    project = Project(tmp_path, clone, "clone")
    text = DOCUMENT.read_text()
    documented = {match[1]: match[0] for match in re.finditer(r"launch/(\w+\.sh) --name=.*--dry-run.*", text)}
    assert len(documented) == 4

    def printed(match: re.Match[str]) -> str:
        command = shlex.split(documented.get(match[2], "launch/kaggle.sh --name=gsm8k --dry-run"))
        out = project.run(match[2], *command[1:]).stdout.replace(str(project.folder), "/home/me/jaxsearchrl")
        out = re.sub(r"--user=\d+:\d+", "--user=1000:1000", out)
        return f"{match[1]}\n{textwrap.indent(out, '    ')}\n{match[4]}"

    wanted = SHOWN.sub(printed, text)
    if os.environ.get("JAXSEARCHRL_WRITE_DOCS"):
        DOCUMENT.write_text(wanted)
    assert text == wanted
