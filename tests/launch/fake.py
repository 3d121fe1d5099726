"""Stands in for gcloud, aws, docker, Slurm and others: notes each call, and does what the files in $FAKE say.

A file named after a call (`ssh.follow`, `create`, `delete`, `squeue`, `storage.cp`) has a line for each time; the last
one stays. A number is the exit status; `preempt` takes the machine away after what it was at; `hang` waits to be ended;
text after `say ` is printed. Buckets are folders in $FAKE. With `hosts`, ssh runs its command in a folder for each.
"""

import json
import os
import re
import sys
import time
from pathlib import Path

FAKE = Path(os.environ["FAKE"])
NAME, WORDS = Path(sys.argv[0]).name, sys.argv[1:]


def main() -> int:
    with (FAKE / "calls.jsonl").open("a") as file:
        file.write(json.dumps([NAME, *WORDS]) + "\n")
    if NAME == "gcloud" and "storage" in WORDS:
        return storage(WORDS[WORDS.index("storage") + 1], WORDS)
    if NAME == "aws":
        return storage(WORDS[1], WORDS)
    if NAME == "gcloud":
        return tpu([word for word in WORDS if word != "alpha"][2:])
    if NAME == "curl":
        hosts = ",".join(f"10.0.0.{path.name}" for path in (FAKE / "hosts").glob("*"))
        print(hosts if WORDS[-1].endswith("endpoints") else os.environ.get("WORKER", "0"), end="")
        return 0
    return outcome(NAME)


def outcome(call: str) -> int:
    """What the next word for this call says."""
    path = FAKE / call
    words = path.read_text().splitlines() if path.exists() else ["0"]
    if len(words) > 1:
        path.write_text("\n".join(words[1:]))
    if words[0] == "preempt":
        (FAKE / "queue").write_text("SUSPENDED")
        (FAKE / "node").write_text("PREEMPTED")
        return 255
    if words[0] == "hang":
        (FAKE / "hangs").touch()
        os.close(1), os.close(2)  # it may outlive a script that is killed
        time.sleep(60)
    if words[0].startswith("say "):
        print(words[0].removeprefix("say "))
        return 0
    return int(words[0])


def tpu(words: list[str]) -> int:
    import shutil
    import subprocess

    kind, verb = words[:2]
    if verb == "list":
        path = FAKE / ("queue" if kind == "queued-resources" else "node")
        states = path.read_text().splitlines() if path.exists() else []
        if status := outcome("list"):
            return status
        if len(states) > 1:
            path.write_text("\n".join(states[1:]))
        print("".join(states[:1]))
        return 0
    if verb == "create":
        if status := outcome("create"):
            return status
        states = FAKE / "queue_after_create"
        (FAKE / "queue").write_text(states.read_text() if states.exists() else "ACTIVE")
        (FAKE / "node").write_text("READY")
        for host in (FAKE / "hosts").glob("*"):
            shutil.rmtree(host)
            host.mkdir()
        return 0
    if verb == "delete":
        if status := outcome("delete"):
            return status
        for name in ("queue", "node"):
            (FAKE / name).unlink(missing_ok=True)
        return 0
    flags = dict(word.removeprefix("--").split("=", 1) for word in words if "=" in word)
    hosts = sorted((FAKE / "hosts").glob("*"))
    if verb == "scp":
        for host in hosts:
            shutil.copy(words[2], host / words[3].split(":")[1])
        return outcome("scp")
    command = flags["command"]
    step = command.split()[1] if "tpu_host.sh" in command else command.split()[0]
    status = outcome(f"ssh.{step}")
    if not hosts:
        return status
    chosen = hosts if flags["worker"] == "all" else [hosts[int(flags["worker"])]]
    # As ssh does, it waits until nobody holds the other end of its output.
    running = [
        subprocess.Popen(
            ["bash", "-c", command],
            cwd=host,
            env={**os.environ, "HOME": str(host), "WORKER": host.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        for host in chosen
    ]
    for process in running:
        sys.stdout.buffer.write(process.communicate()[0])
    return status or max(process.returncode for process in running)


def storage(verb: str, words: list[str]) -> int:
    """cp and rsync of gcloud, cp and sync of aws, between folders and buckets that are folders."""
    import shutil

    if status := outcome(f"storage.{verb}"):
        return status
    source, target = (local(word) for word in words if not word.startswith("-") and word not in ("storage", "s3", verb))
    if verb == "cp":
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        return 0
    if not source.is_dir():
        print(f"{source}: no such folder", file=sys.stderr)
        return 1
    if verb == "rsync" and not (target.exists() or "bucket" in target.parts):
        print(f"{target}: no such folder", file=sys.stderr)
        return 1
    wanted = {
        path for path in source.rglob("*") if path.is_file() and not left_out(str(path.relative_to(source)), words)
    }
    for path in wanted:
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    if "--delete" in words or "--delete-unmatched-destination-objects" in words:
        for path in [path for path in target.rglob("*") if path.is_file()]:
            if source / path.relative_to(target) not in wanted:
                path.unlink()
    return 0


def left_out(path: str, words: list[str]) -> bool:
    """By gcloud's regular expressions; by aws's patterns, of which the last that fits counts."""
    out = False
    for word in words:
        pattern = word.split("=", 1)[-1]
        if NAME == "gcloud" and word.startswith("--exclude="):
            out = out or bool(re.match(pattern, path))
        elif word.startswith(("--exclude=", "--include=")) and re.fullmatch(
            re.escape(pattern).replace(r"\*", ".*"), path
        ):
            out = word.startswith("--exclude=")
    return out


def local(place: str) -> Path:
    return FAKE / "bucket" / place.split("://")[1] if "://" in place else Path(place)


sys.exit(main())
