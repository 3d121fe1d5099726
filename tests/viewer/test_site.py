"""Every page of a recorded run: it is there, its links lead somewhere, and it stays inside the run folder."""

import posixpath
import re
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest

from jaxsearchrl.records import records_path, to_json_line
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
    count = write_site(site, tmp_path / "out")
    files = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == set(site.paths())
    assert len(files) == count
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
