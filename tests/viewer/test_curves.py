"""Curves, by hand."""

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxsearchrl.viewer.curves import Chart, Series, _ticks, evaluation, overlaid, smoothed, training


def test_smoothing_by_hand():
    # weight 0.6: 1; then (0.6*0.4*1 + 0.4*3) / (1 - 0.36) = 1.44/0.64 = 2.25
    assert smoothed([(0, 1.0), (1, 3.0)], 0.6) == [(0, 1.0), (1, pytest.approx(2.25))]
    assert smoothed([(0, 1.0), (1, 3.0)], 0.0) == [(0, 1.0), (1, 3.0)]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 0.99))
def test_smoothing_stays_between_the_values(values, weight):
    curve = [y for _, y in smoothed(list(enumerate(values)), weight)]
    assert all(min(values) - 1e-3 <= y <= max(values) + 1e-3 for y in curve)


@given(st.floats(-1e9, 1e9), st.floats(0, 1e9), st.integers(2, 8))
def test_ticks_enclose_the_values_and_are_few(low, span, count):
    ticks = _ticks(low, low + span, count)
    size = max(1e-6, abs(low) * 1e-6)
    assert ticks[0] <= low + size
    assert ticks[-1] >= low + span - size
    assert 1 <= len(ticks) <= 4 * count


ROWS = [
    {"kind": "eval", "step": 0, "reward": 0.2, "reward_low": 0.1, "reward_high": 0.3},
    {"kind": "train", "step": 1, "reward": 0.2, "entropy": 0.01},
    {"kind": "train", "step": 2, "reward": None, "entropy": math.nan},
    {"kind": "train", "step": 3, "reward": 0.4, "entropy": 0.2},
]


def test_a_chart_is_xml_with_a_point_for_each_number_and_an_alarm_where_it_was():
    charts = {chart.title: chart for chart in training(ROWS, {1.0: "one.html", 3.0: "three.html"})}
    root = ET.fromstring(charts["Reward"].svg())
    assert [circle[0].text for circle in root.iter("circle")] == ["reward, step 1: 0.2", "reward, step 3: 0.4"]
    assert [a.get("href") for a in root.iter("a")] == ["one.html", "three.html"]
    assert "reward 0.2 at step 1, 0.4 at step 3" in root.get("aria-label")


def test_alarms_stand_at_the_steps_that_raised_them():
    rows = [{"kind": "train", "step": step, "entropy": 0.01, "reward": 0.1} for step in range(1, 6)]
    charts = {chart.title: chart for chart in training(rows, {})}
    entropy = charts["Entropy (nats per token)"]
    assert [step for step, _ in entropy.series[0].alarms] == [4, 5]  # a level needs four steps
    assert not charts["Reward"].series[0].alarms
    alarm = next(path for path in ET.fromstring(entropy.svg()).iter("path") if path.get("class") == "alarm")
    assert "entropy is 0.01" in alarm[0].text


def test_an_interval_and_several_runs():
    (chart,) = evaluation(ROWS, {})
    assert chart.series[0].band == [(0.0, 0.1, 0.3)]
    assert 'class="line measured"' in chart.svg()  # never smoothed
    assert "smooth-1" not in chart.svg()
    both = {chart.title: chart for chart in overlaid([ROWS, ROWS[:2]], ["a", "b"])}
    assert [(s.name, s.color, len(s.points)) for s in both["Training: reward"].series] == [("a", 0, 2), ("b", 1, 1)]


@pytest.mark.parametrize(
    "points",
    [
        [(1.0, 0.0)],
        [(0.0, 5.0), (1.0, 5.0)],
        [(3.0, -1e-12), (900.0, 1e12)],
        [(1.0, 5e-324), (2.0, 0.0)],
        [(1.0, 1.7e308), (2.0, -1.7e308)],
    ],
)
def test_odd_points_are_drawn(points):
    rows = [{"kind": "train", "step": int(step), "reward": value, "entropy": "<&>"} for step, value in points]
    (chart,) = training(rows, {})
    root = ET.fromstring(chart.svg())
    assert len(list(root.iter("circle"))) == len(points)
    for circle in root.iter("circle"):
        assert 0 <= float(circle.get("cx")) <= 460
        assert 0 <= float(circle.get("cy")) <= 210


def test_many_points_have_no_dots():
    chart = Chart("t", [Series("s", [(float(x), x % 7) for x in range(5000)], 0)])
    assert not list(ET.fromstring(chart.svg()).iter("circle"))
