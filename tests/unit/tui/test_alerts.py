"""Alerts: what gives one, once for each event, and what the user can do about them."""

from __future__ import annotations

import dataclasses

import pytest
from dashboards import NOW, a_picture, a_survey, picture_of, screen_text, until
from msgspec.structs import replace
from shell import shown_dashboard
from slurm_share_tui.alerts import CALM_S, AlertBook, ended_text, own_part
from slurm_share_tui.location import Location
from slurm_share_tui.picture import SurveyPicture
from slurm_share_tui.screens.alerts import AlertsScreen
from slurm_share_tui.user_config import AlertConfig, parse_config
from slurm_share_tui.wire import JobEnd

from slurm_share.core.errors import ConfigError


def at(seconds: float, **words) -> SurveyPicture:
    return a_picture(now=NOW + seconds, **words)


def later(found: SurveyPicture, seconds: float, **words) -> SurveyPicture:
    """Return the same survey at another time."""
    return picture_of(replace(found.survey, taken=found.survey.taken + seconds, **words))


def test_an_own_job_that_leaves_gpus_idle_is_said_once() -> None:
    book = AlertBook()
    (alert,) = book.take(at(0))
    assert alert.said == "job 20778 interactive leaves 2 GPUs idle for 10 minutes"
    assert alert.location == Location(view="job", user="alice", job=20778, job_name="20778 interactive")
    assert book.take(at(5)) == []
    assert [one.kind for one in book.shown] == ["idle"]


def test_what_is_not_ones_own_is_quiet_unless_it_is_asked_for() -> None:
    others = AlertBook(AlertConfig(others=True, silent_seconds=1))
    book = AlertBook(AlertConfig(silent_seconds=1))
    for seconds in (0, 5):
        others.take(at(seconds))
        book.take(at(seconds))
    assert {one.subject for one in book.shown} == {"job 20778"}
    assert {"node c-2", "job 95598"} <= {one.subject for one in others.shown}
    assert any("of bob" in one.said for one in others.shown)


def test_a_longer_time_for_idle_gpus_is_waited_for() -> None:
    book = AlertBook(AlertConfig(idle_minutes=12))
    found = at(0)
    assert book.take(found) == []
    assert book.take(later(found, 119)) == []
    assert [one.kind for one in book.take(later(found, 121))] == ["idle"]


@pytest.mark.parametrize("config", [AlertConfig(idle_minutes=0), AlertConfig(idle_minutes=0, memory_percent=0)])
def test_zero_turns_an_alert_off(config: AlertConfig) -> None:
    assert AlertBook(config).take(at(0)) == []


def test_memory_near_the_cap_of_a_task_and_near_the_jobs_memory() -> None:
    book = AlertBook(AlertConfig(idle_minutes=0, memory_percent=20))
    found = book.take(at(0))
    assert any(one.said.startswith("a task of job 86720 resnet18 uses ") and "its cap of" in one.said for one in found)
    assert any("of its 1024.0GB host memory" in one.said for one in found)


def test_an_event_that_is_over_for_a_while_is_said_again() -> None:
    book, found = AlertBook(), at(0)
    book.take(found)
    calm = [job for job in found.survey.jobs if job.job_id != 20778]
    for seconds in (5, CALM_S, CALM_S + 10):
        book.take(later(found, seconds, jobs=tuple(calm), nodes=()))
    assert [one.over is not None for one in book.alerts if one.kind == "idle"] == [True]
    assert [one.kind for one in book.take(later(found, 300))] == ["idle"]


def test_an_own_job_that_is_gone_has_ended_and_one_of_others_is_quiet() -> None:
    book, found = AlertBook(AlertConfig(idle_minutes=0)), at(0)
    assert book.take(found) == []
    left = tuple(job for job in found.survey.jobs if job.job_id not in (36942, 72504))
    (alert,) = book.take(later(found, 5, jobs=left))
    assert alert.said.startswith("job 36942 llm-finetune has ended after ")
    job = next(job for job in found.survey.jobs if job.job_id == 36942)
    failed = replace(job, states=("FAILED",), reason="NonZeroExitCode", ends=job.start + 90)
    book.explain(36942, ended_text(failed))
    assert book.shown[0].said == "job 36942 llm-finetune: FAILED (NonZeroExitCode) after 90 s"
    assert "COMPLETED" in ended_text(replace(job, states=("COMPLETED",)))


def test_a_job_that_waits_again_or_a_queue_that_is_not_known_is_no_end() -> None:
    book, found = AlertBook(AlertConfig(idle_minutes=0)), at(0)
    book.take(found)
    requeued = tuple(replace(job, nodes="", states=("PENDING",)) for job in found.survey.jobs)
    assert book.take(later(found, 5, jobs=requeued)) == []
    book.take(later(found, 10))
    assert book.take(later(found, 15, jobs=(), jobs_taken=None)) == []


def test_only_the_own_part_of_a_survey_is_looked_at() -> None:
    found = own_part(at(0))
    assert {job.user for job in found.survey.jobs} == {"alice"}
    assert {row.name for row in found.nodes} == {"v-1", "v-2", "h-1", "h-2"}
    assert own_part(dataclasses.replace(found, survey=replace(found.survey, jobs=()))).nodes == found.nodes


def test_a_recording_has_none() -> None:
    assert AlertBook().take(dataclasses.replace(at(0), survey=replace(a_survey(), source="replay"))) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[alerts]\nidle_minutes = 5", "from 10 to 1440"),
        ("[alerts]\nmemory_percent = 120", "from 1 to 100"),
        ("[alerts]\nbel = true", "bel"),
        ('[alerts]\nbell = "yes"', "bool"),
        ("alerts = 3", "a table of thresholds"),
    ],
)
def test_a_wrong_threshold_is_refused_with_a_sentence(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_config(text, "tui.toml")


def test_thresholds_are_read() -> None:
    config = parse_config("[alerts]\nidle_minutes = 30\nbell = false\nmemory_percent = 0", "tui.toml")
    assert config.alerts == AlertConfig(idle_minutes=30, bell=False, memory_percent=0)


async def test_the_banner_names_the_newest_and_the_list_silences_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with shown_dashboard(a_picture(), size=(80, 24)) as (pilot, app, feed):
        rung: list[int] = []
        monkeypatch.setattr(app, "bell", lambda: rung.append(1))
        assert "! job 20778 interactive leaves 2 GPUs idle" in screen_text(app)
        left = tuple(job for job in a_survey().jobs if job.job_id != 36942)
        feed.bring(later(a_picture(), 5, jobs=left))
        await until(pilot, lambda: "job 36942 llm-finetune has ended" in screen_text(app))
        assert rung == [1]
        assert "+1 more" in screen_text(app)
        feed.bring(JobEnd(36942, replace(a_survey().jobs[0], states=("TIMEOUT",), reason="TimeLimit")))
        await until(pilot, lambda: "TIMEOUT (TimeLimit)" in screen_text(app))
        await pilot.press("a")
        await until(pilot, lambda: isinstance(app.screen, AlertsScreen))
        await pilot.press("S")
        await until(pilot, lambda: screen_text(app).count("silenced") == 2)
        await pilot.press("escape")
        await until(pilot, lambda: len(app.screen_stack) == 1)
        assert "list, silence" not in screen_text(app)
        await pilot.press("a", "down", "enter")
        await until(pilot, lambda: app.main_screen.location.view == "job")
        assert app.main_screen.location.job == 20778


async def test_an_empty_list_says_so() -> None:
    async with shown_dashboard(a_picture(), size=(80, 24)) as (pilot, app, _):
        app.alerts.alerts = []
        await pilot.press("a")
        await until(pilot, lambda: "no alerts" in screen_text(app))
