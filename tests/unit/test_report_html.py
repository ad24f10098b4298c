import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typing_extensions import override

from orchestrator.report.chart import chart_of
from orchestrator.report.html import environment, headline, render
from orchestrator.report.views import AttemptView, read_attempt
from orchestrator.storage.layout import AttemptFolder
from tests.unit.records_help import START
from tests.unit.sample_runs import HOSTILE, SampleRuns


class Page(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    @override
    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def names(self) -> set[str]:
        return {tag for tag, _ in self.tags}


@pytest.fixture
def sample(tmp_path: Path) -> SampleRuns:
    return SampleRuns(tmp_path / "runs")


def _view(folder: AttemptFolder) -> AttemptView:
    return read_attempt(folder)


def _hostile(sample: SampleRuns) -> AttemptFolder:
    sample.name, sample.title, sample.agent = f"evil {HOSTILE}", HOSTILE, f"agent {HOSTILE}"
    return sample.finished(1, contested=(HOSTILE,)).replay.attempt


def test_LG_03_no_data_becomes_markup(sample: SampleRuns) -> None:
    text = render(_view(_hostile(sample)), now=START)
    page = Page(text)
    assert not page.names() & {"script", "img", "link", "iframe", "object", "base", "form", "a"}
    attributes = {name for _, attrs in page.tags for name in attrs}
    assert not {name for name in attributes if name.startswith("on") or name == "style"}
    assert not attributes & {"src", "href", "action", "srcdoc"}
    assert any("<script>alert(1)</script>" in words for words in page.words)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


def test_LG_03_every_template_escapes() -> None:
    made = environment()
    for name in ("", "page.html.j2", "page.txt"):
        template = made.from_string("{{ x }}")
        template.name = name
        assert template.render(x="<b>\x1b") == "&lt;b&gt;"
        assert made.autoescape is True


def test_the_policy_allows_the_one_style_sheet_and_nothing_else(sample: SampleRuns) -> None:
    text = render(_view(_hostile(sample)), now=START)
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(style) == 1
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    policies = [
        attrs["content"]
        for tag, attrs in Page(text).tags
        if tag == "meta" and attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == [
        f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    ]
    assert "url(" not in style[0]
    assert "@import" not in style[0]


def test_the_page_says_what_there_is(sample: SampleRuns) -> None:
    scoring = sample.finished(contested=("host_oom_count",))
    words = " ".join(Page(render(_view(scoring.replay.attempt), now=START)).words)
    for said in (
        "Forget one digit",
        "0.7658",
        "local",
        "contested: host_oom_count",
        "checkpoint-9960",
        "not_loadable: weights.npz is not a zip file",
        "1 1.5 s",
        "forget_mia_auc",
        "reference 0.8012",
        "exit code 0, stop reason exited, 9 min 29 s",
        "submit refused",
        "the volume of /out is watched, not allocated",
        "unlearn_score, replay-001/score-001, checkpoint-9100",
        f"orch verify {scoring.replay.attempt.root.parent.name}/attempt-001 --key KEY.pem",
    ):
        assert said in words
    head = words[: words.index("Scores")]
    assert "the volume of /out is watched, not allocated" in head


def test_a_page_without_a_score_says_why_and_shows_no_others_as_if_it_were_one(
    sample: SampleRuns,
) -> None:
    sample.reference = ({"name": "start", "value": 0.4, "note": "measured elsewhere"},)
    sample.broken()
    page = Page(render(_view(sample.runs.configs()[0].attempt(1)), now=START))
    words = " ".join(" ".join(page.words).split())
    assert "no score replay-001: container_lost: the engine forgot it" in words
    assert "Scores" not in page.words
    assert words.index("measured elsewhere") > words.index("Replay 001")


@pytest.mark.parametrize("kind", ["no_candidate", "broken", "explored", "attempt"])
def test_a_report_can_be_made_at_any_time(sample: SampleRuns, kind: str) -> None:
    getattr(sample, kind)()
    page = Page(render(_view(sample.runs.configs()[0].attempt(1)), now=START))
    assert "svg" not in page.names()
    assert any("no score" in words for words in page.words)


def test_SC_04_a_corrupt_result_is_shown_as_corrupt(sample: SampleRuns) -> None:
    scoring = sample.finished()
    scoring.summary.write_text("")
    page = Page(render(_view(scoring.replay.attempt), now=START))
    words = " ".join(page.words)
    assert "corrupt" in words
    assert "not a result" in words
    assert "svg" not in page.names()


def test_an_unreadable_attempt_still_has_a_page(sample: SampleRuns) -> None:
    sample.no_candidate()
    folder = sample.runs.configs()[0].attempt(1)
    folder.plan.write_text("{")
    folder.journal.write_text("{")
    assert "plan.json" in render(_view(folder), now=START)


def test_the_finished_official_replay_heads_the_page(sample: SampleRuns) -> None:
    scoring = sample.finished()
    attempt = scoring.replay.attempt
    sample.replayed(attempt, number=2)
    found = headline(_view(attempt))
    assert found is not None
    assert found.folder == scoring.replay


def test_the_chart_keeps_order_and_stays_inside(sample: SampleRuns) -> None:
    scoring = sample.finished()
    chart = chart_of(_view(scoring.replay.attempt).replays[0].scorings[0])
    assert chart is not None
    assert [point.progress for point in chart.points] == ["7800", "9100", "9960"]
    assert [point.best for point in chart.points] == [False, True, False]
    xs = [point.x for point in chart.points]
    assert xs == sorted(xs)
    assert chart.points[1].y < chart.points[2].y < chart.points[0].y
    places = [point.y for point in chart.points] + [level.y for level in chart.levels]
    assert all(chart.top <= y <= chart.bottom for y in places)
    assert [level.name for level in chart.levels] == ["reference", "start"]


def test_a_headline_of_a_seeded_replay_says_which(sample: SampleRuns) -> None:
    scoring = sample.scored(sample.replayed(sample.submitted(), number=2))
    words = Page(render(_view(scoring.replay.attempt), now=START)).words
    assert "unlearn_score, replay-002/score-001 (seed-2), checkpoint-9100" in words
