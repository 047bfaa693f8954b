import json
import re
from html.parser import HTMLParser

import pytest

from miles_cli.report.charts import Scale, line_chart, number, ticks
from miles_cli.report.html import write_report
from miles_cli.report.samples_file import SamplesFile
from miles_cli.report.series import Chart, Series
from miles_cli.report.summary import write_summary
from miles_cli.report.trajectory import MOST_CHARACTERS, trajectory
from miles_core.sample import Finish, Group, Origin, Sample, Span

VOID = {"meta"}


class Page(HTMLParser):
    """Collects elements and refuses a page whose tags do not nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def classed(self, *names):
        return [a for _, a in self.elements if set(names) <= set((a.get("class") or "").split())]


@pytest.fixture
def run_dir(tmp_path):
    run = tmp_path / "my run"
    run.mkdir()
    lines = []
    for step in range(12):
        times = {"started_s": 10.0 + 3 * step, "rollout_s": 1.5, "train_s": 1.0, "push_s": 0.25, "step_s": 3.0}
        figures = {"reward_mean": step / 12, "reward_std": 0.1, "loss": 0.5 - step / 100, "kl": 0.001 * step}
        lines.append({"step": step, "weight_version": step + 1, **figures, "logprob_abs_diff_max": 1e-6, "time": times})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run / "config.toml").write_text('kind = "rl"\nnote = "<b>&"\n')

    def sampled(text, **options):
        ids = tuple(text.encode())
        logprobs = tuple(-0.5 for _ in ids)
        return Span(origin=Origin.SAMPLED, ids=ids, logprobs=logprobs, weight_versions=(2,) * len(ids), **options)

    def sample(index, reward):
        spans = (
            Span(origin=Origin.PROMPT, ids=tuple(b"<script>alert(1)</script>")),
            sampled("call"),
            Span(origin=Origin.GLUE, ids=tuple(b"\nuser\n")),
            Span(origin=Origin.ENVIRONMENT, ids=tuple(b"14")),
            sampled("bad", trained=False),
        )
        return Sample(prompt_id="p", rollout_id=f"r/{index}", spans=spans, finish=Finish.STOP, reward=reward)

    file = SamplesFile(run / "samples", decode=lambda ids: bytes(ids).decode())
    for step in range(12):
        file.write(step, [Group(prompt_id="p", samples=(sample(0, 0.0), sample(1, 1.0), sample(2, 0.5)))])
    write_summary(run)
    return run


def test_the_page_is_well_formed_and_refers_to_nothing_outside_itself(run_dir):
    path = write_report(run_dir)
    assert path == run_dir / "report.html"
    text = path.read_text()
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL))
    assert not [tag for tag, a in page.elements if tag in ("link", "img", "iframe") or "src" in a or "href" in a]


def test_text_of_the_model_is_shown_and_never_run(run_dir):
    page = Page(write_report(run_dir).read_text())
    assert sum(tag == "script" for tag, _ in page.elements) == 1
    assert any("<script>alert(1)</script>" in text for text in page.text)
    assert any('note = "<b>&"' in text for text in page.text)


def test_first_middle_and_last_step_show_their_best_and_worst(run_dir):
    page = Page(write_report(run_dir).read_text())
    heads = [text for text in page.text if text.startswith("step ") and "reward" in text]
    assert [head.split(" · ")[:3] for head in heads] == [
        [f"step {step}", rollout, reward]
        for step in (0, 6, 11)
        for rollout, reward in (("r/1", "reward 1.000"), ("r/0", "reward 0.000"))
    ]
    assert "40 tokens, 4 trained" in heads[0]


def test_every_origin_has_its_class_and_sampled_tokens_their_logprob(run_dir):
    page = Page(write_report(run_dir).read_text())
    shown = 6
    assert len(page.classed("token", "sampled")) == 1 + shown * 4
    assert len(page.classed("token", "masked")) == 1 + shown * 3
    for kind in ("prompt", "environment"):
        assert len(page.classed("token", kind)) == 1 + shown
    tips = {a["data-tip"] for a in page.classed("token", "sampled")}
    assert "sampled · id 99 · logprob -0.5000 · p 0.607 · weights v2" in tips


def test_the_timeline_has_a_bar_for_each_phase_of_each_step(run_dir):
    page = Page(write_report(run_dir).read_text())
    for phase in ("rollout", "train", "push"):
        assert len(page.classed("bar", phase)) == 12
    tips = [a["data-tip"] for a in page.classed("bar", "train")]
    assert tips[1] == "step 1: train 1.00 s, from 14.5 s"


def test_charts_hold_the_figures_of_the_file(run_dir):
    page = Page(write_report(run_dir).read_text())
    charts = {a["aria-label"]: json.loads(a["data-chart"]) for _, a in page.elements if "data-chart" in a}
    (reward,) = charts["Reward by step"]["series"]
    assert reward["points"] == [[step, step / 12] for step in range(12)]
    assert "Loss by step" in charts
    assert "Turns by step" not in charts, "no line has turns"


def test_a_kl_that_is_off_has_no_chart_and_an_exact_match_reads_0(tmp_path):
    figures = {"reward_mean": 1.0, "kl": 0.0, "logprob_abs_diff_max": 0.0, "loss": 0.0}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, "weight_version": 1, **figures, "time": {}}) + "\n")
    page = Page(write_report(tmp_path).read_text())
    charts = {a["aria-label"] for _, a in page.elements if "data-chart" in a}
    assert charts == {"Reward by step", "Loss by step", "Engine vs trainer by step"}
    assert page.text[page.text.index("largest logprob difference") - 1] == "0"
    assert "A run of Miles: 1 step." in page.text


def test_a_run_without_a_step_has_a_page(tmp_path):
    page = Page(write_report(tmp_path).read_text())
    assert any("no step is done yet" in text for text in page.text)


def test_a_single_step_is_a_dot():
    chart = Chart(title="t", series=(Series(key="a", label="a"),))
    assert "<circle" in line_chart(chart, [{"step": 0, "a": 1.0}])


def test_a_line_goes_through_its_points():
    chart = Chart(title="t", series=(Series(key="a", label="a"),))
    svg = line_chart(chart, [{"step": 0, "a": 0.0}, {"step": 1, "a": None}, {"step": 2, "a": 1.0}])
    ((begin, end),) = re.findall(r'class="line c0" points="(\S+) (\S+)"', svg)
    # the range is widened by 6 % on both sides: 0 lies at 166 - 156 * 0.06 / 1.12, 1 at 166 - 156 * 1.06 / 1.12
    assert begin == "56.0,157.6"
    assert end == "448.0,18.4"


def test_figures_that_are_all_zero_are_drawn_although_their_axis_is_logarithmic():
    chart = Chart(title="t", series=(Series(key="a", label="a"),), logarithmic=True)
    svg = line_chart(chart, [{"step": 0, "a": 0.0}, {"step": 1, "a": 0.0}])
    assert "polyline" in svg
    assert line_chart(chart, [{"step": 0}]) == ""


def test_scales():
    assert Scale(0.0, 10.0, 100.0, 200.0)(2.5) == 125.0
    assert Scale(1e-6, 1e-2, 0.0, 100.0, logarithmic=True)(1e-4) == pytest.approx(50.0)
    assert Scale(3.0, 3.0, 0.0, 100.0)(3.0) == 50.0


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.2, 0.4, 0.6, 0.8, 1.0]), (0, 60, [0, 20, 40, 60]), (-0.03, 0.11, [0.0, 0.05, 0.1]), (5, 5, [5])],
)
def test_ticks_are_round(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_logarithmic_ticks_are_powers_of_ten():
    assert ticks(1e-7, 1e-4, logarithmic=True) == pytest.approx([1e-7, 1e-6, 1e-5, 1e-4])


def test_short_numbers():
    values = [0, 12, 0.25, 1500, 15000, 2e-6, -3.14159, 2.5e7]
    assert [number(v) for v in values] == ["0", "12", "0.25", "1500", "15k", "2e-6", "-3.142", "2.5e7"]


def test_a_long_trajectory_is_cut_and_says_so():
    span = {"origin": "prompt", "trained": False, "text": "x" * (MOST_CHARACTERS + 1), "ids": [1]}
    sample = {"step": 0, "rollout_id": "r", "reward": None, "finish": "stop", "num_tokens": 2, "spans": [span, span]}
    text = trajectory(sample, opened=False)
    assert text.count("x") == MOST_CHARACTERS
    assert "cut here" in text
    assert "reward none" in text
