"""Where an input lies: folders, single files, shards, and a hub that is a server of this test."""

import functools
import hashlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jaxsearchrl.data.input_files import Input, Published, find_input
from jaxsearchrl.errors import UserError

PUBLISHED = Published("owner/sums", "main", "Without the hub: download train.parquet, 7 MB, from there.")
PAIR = ("train.parquet", "test.parquet")


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return folder


def find(given) -> Input:
    return find_input(str(given), PUBLISHED)


def refusal(given) -> str:
    with pytest.raises(UserError) as error:
        find(given)
    return str(error.value)


@pytest.mark.parametrize("place", ["", "main/", "data/"])
def test_a_folder_is_searched_as_the_hub_and_its_mirrors_lay_it_out(tmp_path, place):
    fill(tmp_path, *(place + name for name in PAIR), "README.md", "socratic/train.parquet")
    wanted = {"train": (tmp_path / place / "train.parquet",), "test": (tmp_path / place / "test.parquet",)}
    assert find(tmp_path) == Input(wanted)


def test_single_files_of_any_kind_are_taken(tmp_path):
    fill(tmp_path, "a/train.jsonl.gz", "b/test.jsonl", "b/train.jsonl")
    train, test = tmp_path / "a/train.jsonl.gz", tmp_path / "b/test.jsonl"
    assert find(f"{train},{test}").files == {"train": (train,), "test": (test,)}


def test_shards_are_read_in_their_order(tmp_path):
    names = [f"train-{n:05}-of-00012.parquet" for n in range(12)]
    fill(tmp_path, *reversed(names), "test-00000-of-00001.parquet")
    assert [path.name for path in find(tmp_path).files["train"]] == names


def test_the_fingerprint_is_of_the_bytes_alone(tmp_path):
    one, two = find(fill(tmp_path / "one", *PAIR)), find(fill(tmp_path / "two", *PAIR))
    sums = {split: [hashlib.sha256(f"{split}.parquet".encode()).hexdigest()] for split in ("train", "test")}
    assert one.fingerprint() == two.fingerprint() == sums
    (tmp_path / "one/test.parquet").unlink()
    with pytest.raises(UserError, match=r"test\.parquet cannot be read"):
        one.fingerprint()


def test_a_wrong_folder_is_refused_with_what_is_there_and_what_is_wanted(tmp_path):
    assert refusal(tmp_path).endswith("found nothing")
    fill(tmp_path, *(f"part_{n:02}.parquet" for n in range(12)))
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: wanted train.parquet and test.parquet (or")
    assert message.endswith(f"found {', '.join(f'part_{n:02}.parquet' for n in range(10))} and 2 more")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["train.parquet"], "no file of the test split; wanted .*; found train.parquet"),
        (["test.jsonl"], "no file of the train split"),
        ([*PAIR, "train.jsonl"], "the train split is there more than once: train.jsonl, train.parquet; leave one"),
        ([*PAIR, "test-00000-of-00001.parquet"], "the test split is there more than once"),
        (["train-00000-of-00002.parquet", "test.parquet"], "the train split is incomplete: shards 0 of 0 to 1"),
        (["train-00001-of-00001.parquet", "test.parquet"], "the train split is incomplete: shards 1 of 0 to 0"),
    ],
)
def test_a_split_that_is_missing_incomplete_or_there_twice_is_refused(tmp_path, names, words):
    assert re.search(words, refusal(fill(tmp_path, *names)))


def test_files_that_do_not_fit_are_refused(tmp_path):
    fill(tmp_path, *PAIR, "mine.parquet", "a/train-00000-of-00001.parquet", "b/train-00000-of-00001.parquet")
    assert "mine.parquet: the name does not say what it is" in refusal(tmp_path / "mine.parquet")
    assert "no file of the test split" in refusal(tmp_path / "train.parquet")
    twice = [tmp_path / place / "train-00000-of-00001.parquet" for place in "ab"]
    assert "more than once" in refusal(",".join(map(str, [*twice, tmp_path / "test.parquet"])))
    assert f"{tmp_path}/absent.parquet is no file; name a folder" in refusal(
        f"{tmp_path}/train.parquet,{tmp_path}/absent.parquet"
    )
    for given in (tmp_path / "absent", "./owner/sums", "sums"):
        assert "a data set of the hub such as owner/sums" in refusal(given)


def test_older_names_of_the_hub_are_known(tmp_path):
    names = [f"{split}-00000-of-00001-a09b74b3ef9c3b56.parquet" for split in ("train", "test")]
    assert find(fill(tmp_path, *names)).files == {"train": (tmp_path / names[0],), "test": (tmp_path / names[1],)}


def test_what_cannot_be_looked_up_is_refused(tmp_path):
    assert "--input is empty" in refusal(" ")
    for given in ("~nobody-of-that-name/x", "x" * 5000):
        assert "cannot be looked up" in refusal(given)


def test_the_folder_of_the_input_is_no_output(tmp_path):
    found = find(fill(tmp_path / "raw", *PAIR))
    found.check_output(tmp_path / "raw" / "made")
    with pytest.raises(UserError, match="is the folder of the input"):
        found.check_output(tmp_path / "other" / ".." / "raw")


COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the Hugging Face hub as a download needs: one data set with one commit."""

    def __init__(self, files: dict[str, bytes], asked: list[str], *arguments):
        self.files, self.asked = files, asked
        super().__init__(*arguments)

    def do_GET(self):
        self.asked.append(self.path)
        path = self.path.partition("?")[0]
        if path == "/api/datasets/owner/sums/revision/v1":
            names = [{"rfilename": name} for name in self.files]
            self.answer(json.dumps({"id": "owner/sums", "sha": COMMIT, "siblings": names}).encode())
        elif path == f"/api/datasets/owner/sums/tree/{COMMIT}":
            tree = [{"type": "file", "path": n, "size": len(c), "oid": self.sum(c)} for n, c in self.files.items()]
            self.answer(json.dumps(tree).encode())
        elif path.startswith(f"/datasets/owner/sums/resolve/{COMMIT}/"):
            self.answer(self.files[path.partition(f"{COMMIT}/")[2]])
        else:
            self.send_error(404)

    def do_HEAD(self):
        self.do_GET()

    def answer(self, content: bytes):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{self.sum(content)}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def sum(self, content: bytes) -> str:
        return hashlib.sha1(content).hexdigest()

    def log_message(self, *_):
        pass


def find_in_a_process_of_its_own(given: str, endpoint: str, cache: Path) -> subprocess.CompletedProcess:
    """The hub's library reads its settings when it is imported."""
    script = (
        "import sys; from jaxsearchrl.data.input_files import Published, find_input\n"
        "assert 'huggingface_hub' not in sys.modules and 'datasets' not in sys.modules\n"
        "found = find_input(sys.argv[1], Published('owner/sums', 'main', 'Without the hub: this.'))\n"
        "print(found.revision, *(path.read_text() for paths in found.files.values() for path in paths))"
    )
    settings = {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1", "NO_PROXY": "*"}
    return subprocess.run(
        [sys.executable, "-c", script, given], env={**os.environ, **settings}, capture_output=True, text=True
    )


def test_the_hub_is_asked_for_the_revision_and_only_for_what_is_needed_and_then_the_cache(tmp_path):
    files = {"main/train.parquet": b"train", "main/test.parquet": b"test", "socratic/train.parquet": b"no", "x": b"no"}
    asked: list[str] = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Hub, files, asked)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        found = find_in_a_process_of_its_own("owner/sums@v1", endpoint, tmp_path)
        server.shutdown()
    assert found.stdout.split() == [COMMIT, "train", "test"], found.stderr
    assert not [path for path in asked if "socratic" in path or path.endswith("/x")]
    again = find_in_a_process_of_its_own("owner/sums@v1", endpoint, tmp_path)  # the server is gone
    assert again.stdout.split() == [COMMIT, "train", "test"], again.stderr


def test_a_hub_that_does_not_answer_is_an_error_that_says_what_to_download(tmp_path):
    found = find_in_a_process_of_its_own("owner/sums", "http://127.0.0.1:9", tmp_path)
    message = found.stderr.partition("jaxsearchrl.errors.UserError: ")[2]
    assert message.startswith("--input=owner/sums: no such file or folder, and the hub did not deliver revision main")
    assert message.rstrip().endswith("Without the hub: this.")
