"""The pages in a real browser: what JavaScript does, what axe finds, what a hostile corpus cannot do."""

import hashlib
import shutil
import subprocess
import tarfile
import threading
from dataclasses import replace

import pytest

from jaxsearchrl.data.assets import cache_dir
from jaxsearchrl.records import CallRecord, EncounteredRecord, TurnRecord, write_records
from jaxsearchrl.telemetry.metrics_file import MetricsFile
from jaxsearchrl.viewer.dataset_pages import key_of
from jaxsearchrl.viewer.server import ViewerServer
from jaxsearchrl.viewer.site import Site
from jaxsearchrl.viewer.write_site import write_site
from tests.viewer.conftest import DOCUMENTS, episode, make_run, step_of

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no chromium on the PATH (Debian: apt-get install chromium)", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (the extra `test`)")

AXE = ("axe-core@4.14.1", "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745")
EVIL = (
    "<script>window.ran = 1</script><img src=x onerror='window.ran = 1'><a href='javascript:window.ran=1'>x</a>"
    '"><svg onload=window.ran=1></svg>{{ 7 * 7 }}</textarea></title><iframe src=//evil.example></iframe>'
    " <|im_end|> \u202egnp.evil\u202c a\u200bb \x1b[2J \0 \ud800 \u2028"
)
HUGE, LONG = ("x" * size + EVIL for size in (4_999_000, 50_000))


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """A page that fails its test for an error on the console, a dialog, or a request to elsewhere."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page, faults = context.new_page(), []
    page.set_default_timeout(20_000)
    page.on("console", lambda message: faults.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: (faults.append("a dialog"), dialog.dismiss()))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith(("http://localhost:", "file://")) else faults.append(request.url)
        ),
    )
    yield page
    context.close()
    assert faults == []


@pytest.fixture(scope="module")
def serve():
    servers = []

    def start(folder):
        server = ViewerServer(Site(folder), "localhost", 0)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.address

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module")
def address(serve, run_folder):
    return serve(run_folder)


@pytest.fixture(scope="module")
def axe():
    """axe-core's source, by npm."""
    name, sha256 = AXE
    archive = cache_dir() / "npm" / f"{name.replace('@', '-')}.tgz"
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["npm", "pack", name, "--pack-destination", archive.parent], check=True, timeout=300)
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == sha256, f"{archive} is damaged: delete it"
    with tarfile.open(archive) as files:
        return files.extractfile("package/axe.min.js").read().decode()  # type: ignore[union-attr]


def groups(page):
    """The questions of the groups that are shown, in their order."""
    return [q.text_content().strip() for q in page.locator(".group:visible h2").all()]  # drawn yet or not


def test_sorting_and_filters_are_kept_in_the_address(page, address):
    page.goto(f"{address}rollouts/train/1.html")
    assert groups(page) == ["q1", "q2"]
    page.select_option("[name=sort]", "mean")
    assert groups(page) == ["q2", "q1"]
    page.select_option("[name=show]", "all-fail")
    assert groups(page) == ["q2"]
    page.select_option("[name=show]", "mixed")
    page.select_option("[name=outcome]", "complete")
    assert page.locator(".group:visible tbody tr:visible").count() == 1
    assert page.locator("#shown").inner_text() == "1 of 2 groups, 1 tries"
    page.reload()
    assert groups(page) == ["q1"]
    page.select_option("[name=outcome]", "")
    page.select_option("[name=show]", "")
    assert page.url.endswith("1.html?sort=mean")
    page.fill("[name=task]", "Q2")
    assert groups(page) == ["q2"]
    page.goto(f"{address}rollouts/train/1.html?sort=mean&outcome=partial")
    assert groups(page) == ["q1"]
    page.keyboard.press("j")  # the step after, sorted and filtered as this one
    page.wait_for_url("**/train/2.html?sort=mean&outcome=partial")
    assert groups(page) == ["q1"]
    page.fill("[name=text]", "q1: who")
    page.locator("[name=text]").press("Enter")
    page.wait_for_url("**text=q1*")
    assert groups(page) == ["q1"]
    assert page.locator("[name=sort]").input_value() == "mean"


def test_an_address_with_names_of_the_form_itself_breaks_nothing(page, address):
    page.goto(f"{address}rollouts/train/1.html?length=1&elements=2&sort=mean&show=%22%3E&by=9&without=x")
    assert groups(page) == ["q2", "q1"]
    page.goto(f"{address}rollouts/train/1.html?outcome=%22%3Eelsewhere")  # as another step has it
    assert groups(page) == []
    assert page.locator("[name=outcome]").input_value() == '">elsewhere'


def test_questions_are_filtered_by_a_split_of_two_words(page, serve, new_run):
    address = serve(new_run([step_of(1), step_of(1, "held out")]))
    page.goto(f"{address}rollouts/held%20out/1.html")  # reads the records
    page.goto(f"{address}tasks.html")
    page.select_option("[name=split]", "held out")
    assert page.locator("#shown").inner_text() == "2 of 2"
    assert page.locator("tbody tr:visible").count() == 2


def test_keys_lead_through_a_step(page, address):
    page.goto(f"{address}rollouts/train/1/1.html")
    for key, place in (
        ("j", "1/2"),
        ("ArrowRight", "1/3"),
        ("k", "1/2"),
        ("w", "1/3"),
        ("b", "1/2"),
        ("t", "1/2-tokens"),
        ("j", "1/3-tokens"),
        ("t", "1/3"),
        ("B", "1/2"),
        ("u", "1"),
        ("u", "index"),
    ):
        page.keyboard.press(key)
        page.wait_for_url(f"**/{place}.html")
    page.keyboard.press("?")
    assert "questions" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("q")
    page.wait_for_url("**/tasks.html")


def test_tokens_take_the_colour_that_is_asked_for(page, address):
    page.goto(f"{address}rollouts/train/1/2-tokens.html")
    ground = "e => getComputedStyle(e).backgroundColor"
    sampled, observed = page.locator(".tokens .s"), page.locator(".tokens .o")
    assert sampled.nth(0).evaluate(ground) != observed.nth(0).evaluate(ground)
    page.check("[value=logprob]")
    colours = [token.evaluate(ground) for token in sampled.all()]
    assert len({*colours}) == 4  # -0.001 and 0.0 alike, -0.3, -5.0, -0.02
    assert colours[0] == colours[3]
    page.reload()
    assert [token.evaluate(ground) for token in sampled.all()] == colours
    page.check("[value=advantage]")
    assert len({token.evaluate(ground) for token in sampled.all()}) == 1


def test_curves_are_smoothed_and_runs_hidden(page, serve, tmp_path):
    for name in ("one", "two"):
        make_run(tmp_path / name)
    address = serve(tmp_path)
    page.goto(address)
    lines = page.locator(".panel", has_text="Training: reward").locator("g[data-run] .smooth-2")
    assert [line.is_visible() for line in lines.all()] == [False, False]
    page.check("[name=smooth][value='2']")
    page.uncheck("[name=run][value='0']")
    assert [line.is_visible() for line in lines.all()] == [False, True]
    page.reload()
    assert [line.is_visible() for line in lines.all()] == [False, True]
    page.locator("th button").first.click()
    page.locator("th button").first.click()
    assert [row.inner_text().split("/")[1].split()[0] for row in page.locator("tbody tr").all()] == ["two", "one"]
    page.get_by_role("link", name=f"{tmp_path.name}/two").click()
    page.wait_for_url("**/two/index.html")


def test_a_page_follows_its_run(page, serve, new_run):
    folder = new_run()
    page.goto(serve(folder))
    page.check("[name=smooth][value='1']")
    page.locator("summary", has_text="Configuration").click()
    assert page.get_by_role("link", name="3", exact=True).count() == 0
    write_records(folder, "train", 3, step_of(3))
    MetricsFile(folder).append(3, "train", {"reward": 0.9})
    (folder / "report.md").write_text("all is well")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 4, "rew')  # at work
    page.get_by_role("link", name="3", exact=True).wait_for()
    assert page.locator("details[open] summary").all_inner_texts() == ["Configuration"]  # not what has come before it
    page.get_by_role("link", name="3", exact=True).click()
    page.wait_for_url("**/train/3.html")
    page.go_back()
    assert page.locator("main").get_attribute("data-smooth") == "1"
    assert page.locator("circle title", has_text="step 3: 0.9").count() == 1


def test_exported_files_work_without_a_server(page, run_folder, tmp_path):
    write_site(Site(run_folder, exported=True), tmp_path / "out")
    page.goto(f"file://{tmp_path}/out/index.html")
    page.get_by_role("link", name="2", exact=True).click()
    page.wait_for_url("**/train/2.html")
    page.select_option("[name=show]", "all-fail")
    assert groups(page) == ["q2"]
    assert page.locator("body").evaluate("e => getComputedStyle(e).margin") == "0px"  # the style sheet came
    page.get_by_role("link", name="try 1").first.click()
    page.wait_for_url("**/train/2/5.html")
    page.keyboard.press("t")
    page.wait_for_url("**-tokens.html")


PAGES = ("index.html", "rollouts/train/1.html", "rollouts/train/1/2.html", "rollouts/train/1/2-tokens.html",
         "tasks.html", f"tasks/{key_of('q1', 'q1: who made brooms?')}.html",
         f"documents/{key_of('007')}.html", "nowhere.html")  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_serious_and_narrow_screens_need_no_scrolling(browser, address, axe, path):
    page = browser.new_page()
    page.goto(address + path)
    page.evaluate(axe)
    for scheme, rules in (("light", "{}"), ("dark", "{runOnly: ['color-contrast']}")):
        page.emulate_media(color_scheme=scheme)
        found = page.evaluate(f"axe.run({rules})")["violations"]
        serious = [(v["id"], [n["html"] for n in v["nodes"]]) for v in found if v["impact"] in ("serious", "critical")]
        assert serious == []
    page.set_viewport_size({"width": 360, "height": 700})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.close()


def test_a_hostile_corpus_is_inert_and_readable(page, serve, tmp_path, monkeypatch):
    monkeypatch.setitem(DOCUMENTS, "evil", HUGE)
    call = CallRecord(EVIL, {EVIL: EVIL, "list": [EVIL]}, False, EVIL)
    turns = (
        TurnRecord(EVIL, EVIL, (call,), HUGE, (EncounteredRecord(EVIL, 1), EncounteredRecord("evil", 2)), (EVIL,)),
        TurnRecord(LONG, LONG, (CallRecord("curate", {"x": LONG}),), EVIL),
    )
    gold = {"facts": [{"fact": EVIL, "chunk_ids": [EVIL, "evil"]}]}
    split = "tr<b>ain"
    record = replace(episode(), split=split, task_id=EVIL, query=EVIL, gold=gold, turns=turns, outcome=EVIL)
    record = replace(record, stop_reason=EVIL, infrastructure_errors=(EVIL,), score_parts={EVIL: 0.5})
    folder = make_run(tmp_path / "<img src=x onerror=window.ran=1>", [[record]])
    (folder / "report.md").write_text(EVIL, "utf-8", "replace")
    MetricsFile(folder).append(1, EVIL.encode("ascii", "replace").decode(), {EVIL[:60]: 1.0})
    address = serve(folder)
    step = f"rollouts/{split}/1"
    paths = (
        "tasks.html",
        f"tasks/{key_of(EVIL, EVIL)}.html",
        f"documents/{key_of(EVIL)}.html",
        f"documents/{key_of('evil')}.html",
    )
    for path in (
        "index.html",
        f"{step}.html",
        f"{step}/1.html",
        f"{step}/1-tokens.html",
        f"{step}.html?text=evil",
        *paths,
    ):
        page.goto(address + path)
        assert page.evaluate("window.ran") is None
        assert page.locator("img, iframe, script:not([src]), main [onload], [href^=javascript]").count() == 0
        assert page.locator("main script, main h1").count() == 1
        assert len(page.content()) < 1_500_000
        page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
        if "tokens" not in path and "documents" not in path:
            shown = page.locator("main").text_content()
            assert "onerror='window.ran = 1'>" in shown
            assert not set("\u202e\u200b\x1b\0") & set(shown)
    page.goto(f"{address}{step}/1.html")
    shown = page.locator("main").text_content()
    assert "U+202Egnp.evilU+202C aU+200Bb U+001B[2J U+0000 U+D800 U+2028" in shown
    assert "<|im_end|>" in shown
    assert "more characters" in shown
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    whole = page.request.get(f"{address}{step}/1.txt").text()
    assert whole.count("x" * 4_999) > 900
    assert len(page.request.get(f"{address}documents/{key_of('evil')}.txt").text()) > len(HUGE)
