"""The benchmark's run is a run."""

from benchmarks.viewer import make_run
from jaxsearchrl.viewer.site import Site


def test_the_run_of_the_benchmark_has_pages(tmp_path):
    make_run(tmp_path, steps=2, count=16, tokens=1200)
    site = Site(tmp_path)
    assert site.page("rollouts/train/2.html", {}).body.count(b'<section class="group"') == 2
    assert b"Turn 20" in site.page("rollouts/train/2/16.html", {}).body
