from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

import pytest

from slurm_share.cli import main
from slurm_share.core import terminal
from slurm_share.core.errors import UsageError
from slurm_share.lab import policies, report, requests
from slurm_share.lab.records import Trace
from slurm_share.lab.requests import SimulationRequest, run_simulation

KEYS = ("make_span_s", "wait_s", "jct_s", "oom_own", "oom_neighbour", "energy_j", "lower_bound_s")


@pytest.fixture(scope="module")
def answer():
    return run_simulation(
        SimulationRequest(
            trace="thesis60", policies=("exclusive", "booked"), alphas=(1.0, 1.3), settles_s=(30.0,), has_picture=True
        )
    )


def test_every_report_says_that_it_is_simulated(answer):
    lines = answer.text.splitlines()
    assert lines[0] == report.NOTE
    assert answer.record["note"] == report.NOTE
    booked = next(line for line in lines if line.startswith("booked"))
    assert booked.count("(") >= 3
    assert "booked against exclusive: make-span -" in answer.text


def test_a_record_has_each_policy_at_each_setting(answer):
    results = answer.record["results"]
    assert len(results) == 8
    assert all(set(KEYS) <= set(one) for one in results)
    assert {(one["policy"], one["setting"]["alpha"], one["setting"]["power_exponent"]) for one in results} == {
        (policy, alpha, exponent)
        for policy in ("exclusive", "booked")
        for alpha in (1.0, 1.3)
        for exponent in (0.35, 0.8)
    }
    assert all(one["lower_bound_s"] <= one["make_span_s"] for one in results)


def test_the_picture_is_of_the_first_policy_and_says_simulated(answer):
    text = " ".join(ElementTree.fromstring(answer.picture).itertext())
    assert "simulated: thesis60, exclusive, seed 1" in text
    assert all(f"task {number} " in text for number in range(60))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"trace": "thesis61"}, "no such file or folder"),
        ({"policies": ("best",)}, "there is no policy 'best'"),
        ({"runs": 0}, "--runs 0"),
        ({"gpus": 0}, "--gpus 0"),
        ({"alphas": (-1.0,)}, "--alpha -1"),
        ({"gpu_memory": "many"}, "'many' is not a size"),
        ({"format": "csv"}, "--format csv: one of gavel"),
    ],
)
def test_what_cannot_be_simulated_is_answered_in_a_sentence(changes, why):
    with pytest.raises(UsageError, match=why):
        run_simulation(SimulationRequest(**({"trace": "thesis60"} | changes)))


def test_pairs_that_were_measured_are_not_joined_by_a_third():
    trace = Trace(name="t", tasks=(), speeds={("a", "b"): 0.5})
    assert requests._fitted(policies.parse("booked"), trace).settings.max_per_gpu == 2
    assert requests._fitted(policies.parse("booked,max_per_gpu=3"), trace).settings.max_per_gpu == 3


def test_the_command_prints_text_or_json_and_writes_the_picture(tmp_path, capsys):
    given = ["lab", "simulate", "sweep", "--policy", "booked", "--alpha", "1", "--settle", "30"]
    assert main.main(given) == 0
    assert capsys.readouterr().out.startswith(report.NOTE)
    file = tmp_path / "sweep.svg"
    assert main.main([*given, "--json", "--picture", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["policy"] == "booked"
    assert ElementTree.fromstring(file.read_text()).tag.endswith("svg")


def test_a_picture_that_cannot_be_written_is_said(tmp_path, capsys):
    """Exit code 1, after the report; a place that cannot be one is refused before the simulation."""
    given = ["lab", "simulate", "sweep", "--policy", "booked", "--alpha", "1", "--settle", "30", "--picture"]
    assert main.main([*given, "/dev/full"]) == 1
    assert "the picture cannot be written" in capsys.readouterr().err
    for place, why in ((tmp_path / "no" / "x.svg", "there is no folder"), (tmp_path, "this is a folder")):
        assert main.main([*given, str(place)]) == 2
        out, error = capsys.readouterr()
        assert why in error
        assert not out


def test_a_narrow_terminal_gets_a_line_for_each_figure(capsys, monkeypatch):
    given = ["lab", "simulate", "sweep", "--alpha", "1", "--settle", "30"]
    monkeypatch.setattr(terminal, "width", lambda: 1000)
    assert main.main(given) == 0
    wide = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("booked "))
    monkeypatch.setattr(terminal, "width", lambda: 80)
    assert main.main(given) == 0
    _, _, block = capsys.readouterr().out.partition("POLICY       booked\n")
    lines = block.splitlines()[: len(report.COLUMNS)]
    assert all(len(line) <= 80 for line in lines)
    assert wide.split()[1:] == " ".join(line[13:] for line in lines).split()


def test_ranges_of_signed_figures_have_no_double_dash():
    assert report.cell([-38.0, -22.0, -31.0], "+.0f") == "-31 (-38 to -22)"
    assert report.cell([1.0, 2.0, 4.0], ".0f") == "2 (1-4)"
