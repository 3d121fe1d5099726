"""Every page of a recorded run: it is there, its links lead somewhere, and it stays inside the run folder."""

import json
import os
import posixpath
import re
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxsearchrl.records import records_path, to_json_line, write_records
from jaxsearchrl.viewer.site import Site
from jaxsearchrl.viewer.write_site import write_site
from tests.viewer.conftest import DOCUMENTS, episode, make_run, step_of


class Links(HTMLParser):
    """What a page points to, and what it would run."""

    def __init__(self, text):
        super().__init__()
        self.links, self.inline, self.ids = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.links += [given[name] for name in ("href", "src") if name in given]
        self.ids += [given["id"]] if "id" in given else []
        self.inline += [name for name in given if name == "style" or name.startswith("on")]
        if tag == "style" or (tag == "script" and "src" not in given):
            self.inline.append(tag)


def text(site, path, **query):
    page = site.page(path, query)
    assert page.status == 200, page.body.decode()[-500:]
    return page.body.decode()


@pytest.fixture(scope="module")
def site(run_folder):
    site = Site(run_folder)
    list(site.paths())  # reads all records
    return site


def test_every_page_is_there_and_every_link_leads_to_one(site):
    paths = list(site.paths())
    assert len(paths) == len(set(paths))
    for path in paths:
        page = site.page(path, {})
        assert page.status == 200, path
        if page.kind != "text/html":
            continue
        found = Links(page.body.decode())
        assert found.inline == [], path
        assert len(found.ids) == len(set(found.ids)), path
        for link in found.links:
            parts = urlsplit(link)
            assert not parts.scheme, link
            assert not parts.netloc, link
            if parts.path:
                target = posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(parts.path)))
                assert target in paths, (path, link)
            elif parts.fragment:
                assert parts.fragment in found.ids, (path, link)


def test_the_exported_files_are_the_same_pages(run_folder, tmp_path):
    site = Site(run_folder, exported=True)
    count, faults = write_site(site, tmp_path / "out")
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == set(site.paths())
    assert (len(files), 0) == (count, faults)
    page = (tmp_path / "out/rollouts/train/2/1.html").read_text()
    assert "data-live" not in page
    assert "Content-Security-Policy" in page
    assert (
        'name="text"' not in (tmp_path / "out/rollouts/train/2.html").read_text()
    )  # looking into turns needs a server
    with pytest.raises(Exception, match="empty folder"):
        write_site(site, tmp_path / "out")


def test_a_rollout_shows_its_parts(site):
    page = text(site, "rollouts/train/2/2.html")
    assert "who made brooms" in page
    assert '<a class="doc gold"' in page
    assert "<mark>007</mark> | Brooms" in page
    assert "brooms first" in page
    assert '<span class="state seen">seen</span>' in page
    assert "12 tokens, 75% of 16" in page
    # next, before, best and worst of the group
    assert '<a href="3.html" data-keys="j ArrowRight">' in page
    assert '<a href="1.html" data-keys="k ArrowLeft">' in page
    assert '<a href="2.html" data-keys="b">' in page
    assert '<a href="3.html" data-keys="w">' in page


def test_tokens_are_coloured_by_mask_logprob_and_advantage(site):
    page = text(site, "rollouts/train/2/2-tokens.html")
    spans = re.findall(r'<span class="([so][^"]*)" title="(\d+)[^"]*">', page)
    assert [int(token) for _, token in spans] == list(range(100, 112))
    # q1's try 1 earned 1.0 of a mean of 0.43: its tokens go up; -0.001, -0.3, -5.0, 0.0, -0.02 nats
    kinds = [kind for kind, _ in spans]
    assert kinds == ["o"] * 4 + ["s p0 up", "s p3 up", "s p7 up", "o", "s p0 up", "s p1 up", "o", "o"]
    assert "Tokens are shown as numbers" in page


def test_a_step_lists_groups_with_parts_and_filters_by_text(site):
    page = text(site, "rollouts/train/1.html")
    assert page.count('<section class="group"') == 2
    assert 'data-traits="all-fail no-signal"' in page
    assert ">precision</th>" in page
    assert ">format penalty</th>" not in page
    assert text(site, "rollouts/train/1.html", text="Q2: who").count('<section class="group"') == 1
    assert text(site, "rollouts/train/1.html", text="<script>").count('<section class="group"') == 0
    assert '"><i>' not in text(site, "rollouts/train/1.html", text='"><i>')


def test_the_run_page_has_curves_alarms_and_settings(site):
    page = text(site, "index.html")
    assert "Evaluation: reward" in page
    assert "step 2: data stands still: data/position went from 2 to 2" in page
    assert "capacity" in page


def test_a_question_through_the_run(site):
    page = text(site, "tasks.html")
    assert page.count("<tr data-splits") == 2
    assert "33 %" in page  # one of q1's three tries in each of three files
    key = re.search(r'href="(tasks/\w+\.html)"', page)[1]
    task = text(site, key)
    for place in ("train</bdi> step 1", "train</bdi> step 2", "eval</bdi> step 0"):
        assert place in task
    assert DOCUMENTS["015"] in task
    document = re.search(r'href="\.\./(documents/\w+\.html)"', task)[1]
    assert DOCUMENTS["007"] in text(site, document)
    assert "Shown to 18 tries" in text(site, document)


def test_one_id_of_two_questions_is_two_questions(new_run):
    """As where training and evaluation, or two sources, number theirs alike."""
    other = episode(split="eval", step=0, query="How far does an owl turn its head?", source="owls")
    site = Site(new_run([[episode()], [other]]))
    list(site.paths())  # reads all records
    page = text(site, "tasks.html")
    assert page.count("<tr data-splits") == 2
    pages = {
        place: text(
            site, re.search(r'href="\.\./\.\./\.\./(tasks/\w+\.html)"', text(site, f"rollouts/{place}/1.html"))[1]
        )
        for place in ("train/1", "eval/0")
    }
    assert "train</bdi> step 1" in pages["train/1"]
    assert "eval</bdi> step 0" not in pages["train/1"]
    assert "owl" in pages["eval/0"]
    assert "owl" not in pages["train/1"]


def test_broken_metrics_and_records_are_named_and_hide_nothing(new_run):
    folder = new_run()
    (folder / "metrics.jsonl").write_text('{"kind": "train"}\n')
    path = records_path(folder, "train", 1)
    path.with_suffix("").with_name("step_000007.jsonl").write_text("nonsense\n" + to_json_line(episode(step=7)) + "\n")
    site = Site(folder)
    assert "metrics.jsonl, line 1" in text(site, "index.html")
    page = text(site, "rollouts/train/7.html")
    assert "line 1 is no rollout record" in page
    assert 'href="7/2.html"' in page
    assert text(site, "rollouts/train/7/2.html")
    assert site.page("rollouts/train/7/1.html", {}).status == 404


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "rollouts/../../secret.txt",
        "rollouts/train/../../../secret.txt",
        "config.json",
        "metrics.jsonl",
        "rollouts/train/step_000001.jsonl.gz",
        "_viewer/../site.py",
        "/etc/passwd",
        "rollouts/linked/1.html",
        "linked/index.html",
        "tasks/0000000000000000.html",
        "rollouts/train/99999999999999999999.html",
        "rollouts/train/1/0.html",
        "\0",
    ],
)
def test_nothing_else_is_served(new_run, tmp_path, path):
    folder = new_run()
    outside = make_run(tmp_path / "elsewhere" / "run", [[replace(r, split="linked") for r in step_of(1)]])
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "rollouts" / "linked").symlink_to(outside / "rollouts" / "linked")
    (folder / "linked").symlink_to(outside)
    page = Site(folder).page(path, {})
    assert page.status in (404, 500)
    assert b"secret" not in page.body.replace(b"secret.txt", b"")
    assert b"brooms" not in page.body


WRONG = (None, True, -1, 10**400, 1e308, float("nan"), float("inf"), "<b>", "\ud800", [], {}, [[1]], {"facts": ["a"]})


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_no_record_stops_a_page(tmp_path_factory, data):
    """Whatever stands in one place of a record, it has a page or is named, and hides no other."""
    fields = json.loads(to_json_line(episode()))
    node = fields
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = data.draw(st.sampled_from(keys))
        if not node[key] or not isinstance(node[key], dict | list) or data.draw(st.booleans()):
            break
        node = node[key]
    node[key] = data.draw(st.sampled_from(WRONG))
    folder = tmp_path_factory.mktemp("hostile")
    path = records_path(folder, "train", 1).with_suffix("")
    path.parent.mkdir(parents=True)
    path.write_text(f"{json.dumps(fields)}\n{to_json_line(episode(attempt=1))}\n")
    site = Site(folder)
    for page in site.paths():
        assert site.page(page, {}).status == 200 or page.startswith("rollouts/train/1/1"), page
    step = text(site, "rollouts/train/1.html")
    assert "1/2.html" in step
    assert "line 1 is no rollout record" in step or "1/1.html" in step
    assert "1/2.html" in text(site, "rollouts/train/1.html", text="brooms first")


def test_numbers_beyond_reason_in_metrics(new_run):
    folder = new_run()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 3, "reward": 1e308, "entropy": "x"}\n')
    assert "1e+308" in text(Site(folder), "index.html")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(f'{{"kind": "train", "step": 4, "reward": {10**400}}}\n')
    assert "line 5: &#39;reward&#39; is too large a number" in text(Site(folder), "index.html")


def test_odd_things_among_the_records_hide_none(new_run):
    folder = new_run()
    (folder / "rollouts/train/step_000007.jsonl").symlink_to("nowhere")
    os.mkfifo(folder / "rollouts/train/step_000008.jsonl")
    (folder / "rollouts/train/step_000009.jsonl.gz").mkdir()
    write_records(folder, "rollouts", 1, [episode(split="rollouts")])
    (folder / "config.json").write_text('{"task": {"corpus": [1], "index_dir": 7}, "model": {"tokenizer": ["x"]}}')
    site = Site(folder)
    assert [run.base for run in site.runs] == [""]
    for path in site.paths():
        assert site.page(path, {}).status == 200, path
    assert text(site, "rollouts/rollouts/1/1.html")


def test_a_file_that_turns_into_a_link_out_of_the_run_is_not_followed(new_run, tmp_path):
    folder, outside = new_run(), new_run(name="other")
    site = Site(folder)
    assert text(site, "rollouts/train/1.html")
    path = records_path(folder, "train", 1)
    path.unlink()
    path.symlink_to(records_path(outside, "train", 1))
    assert site.page("rollouts/train/1.html", {}).status == 500


@pytest.mark.parametrize("name", ["_viewer", "a b", "100%#?&'\"", "a:b", "\udcff", "index.html"])
def test_runs_of_any_name(tmp_path, name):
    make_run(tmp_path / "runs" / name)
    site = Site(tmp_path / "runs")
    for link in Links(text(site, "index.html")).links:
        parts = urlsplit(link)
        assert not parts.scheme
        assert not parts.query
        if parts.path:
            assert site.page(unquote(parts.path, errors="surrogateescape"), {}).status == 200
    if name != "index.html":  # as files it would be a file and a folder
        write_site(Site(tmp_path / "runs", exported=True), tmp_path / "out")
        check_links_of_files(tmp_path / "out")


def check_links_of_files(folder):
    for path in folder.rglob("*.html"):
        for link in Links(path.read_text()).links:
            parts = urlsplit(link)
            assert not parts.scheme
            assert not parts.path or (path.parent / unquote(parts.path, errors="surrogateescape")).is_file(), (
                path,
                link,
            )


def test_an_export_has_no_broken_link_where_documents_and_records_cannot_be_read(new_run, tmp_path):
    folder = new_run()
    (folder / "config.json").write_text("{}")
    path = records_path(folder, "train", 3).with_suffix("")
    path.write_text(
        to_json_line(episode(step=3, split="tr\nain")).replace('"seconds":3.5', '"seconds":3.5,"new":1') + "\n"
    )
    assert write_site(Site(folder, exported=True), tmp_path / "out")[1] == 3  # the record, its tokens, its text
    check_links_of_files(tmp_path / "out")
    assert not list((tmp_path / "out/documents").glob("*.txt"))
    assert not [file for file in (tmp_path / "out").rglob("*.txt") if file.read_text().startswith("<!doctype")]


def test_ids_that_differ_in_halves_of_a_pair_are_two(new_run):
    folder = new_run([[episode(task_id=name) for name in ("a?", "a\ud800", "a\ud801")]])
    site = Site(folder)
    list(site.paths())
    assert text(site, "tasks.html").count("<tr data-splits") == 3


def test_a_folder_of_runs(new_run, tmp_path):
    for name in ("a", "b/c"):
        make_run(tmp_path / name)
    make_run(tmp_path / "a/evaluations/step_000002", [step_of(2, "eval")])
    (tmp_path / "again").symlink_to(tmp_path / "a")
    site = Site(tmp_path)
    assert [run.base for run in site.runs] == ["a/", "a/evaluations/step_000002/", "b/c/"]
    page = text(site, "index.html")
    assert 'href="b/c/index.html"' in page
    assert "Training: reward" in page
    assert text(site, "b/c/rollouts/train/1/1.html")
    assert text(site, "a/evaluations/step_000002/rollouts/eval/2.html")
    assert site.page("b/rollouts/train/1/1.html", {}).status == 404


def test_a_page_changes_its_mark_when_the_run_goes_on(new_run):
    folder = new_run()
    site = Site(folder)
    before = site.signature("index.html")
    assert site.signature("index.html") == before
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 3, "rew')
    assert site.signature("index.html") != before
    assert "step 3" not in text(site, "index.html")  # the half-written line
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('ard": 0.75}\n')
    assert "reward, step 3: 0.75" in text(site, "index.html")
    assert site.signature("rollouts/train/1/1.html") is None
