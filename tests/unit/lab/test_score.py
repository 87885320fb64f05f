"""Scores on data given by path, through the command."""

from __future__ import annotations

import json

import pytest

from slurm_share.cli import main

PAIRS = "kind_a,kind_b,speed_a,speed_b\na,b,0.4,0.4\na,a,0.9,0.9\nb,b,0.9,0.9\n"
SHEET = "model,batch,peak_mib,seconds\n" + "".join(f"m,{8 * n},{1000 + 800 * n},600\n" for n in range(1, 9))


def score(capsys, *arguments):
    assert main.main(["lab", "score", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_pairs_give_a_world_at_once_and_one_with_arrivals(tmp_path, capsys):
    file = tmp_path / "pairs.csv"
    file.write_text(PAIRS)
    given = ("--pairs", file, "--runs", 2, "--tasks", 12, "--policy", "booked")
    text = score(capsys, *given)
    assert "pairs.csv, at once: 12 tasks on 4 GPUs" in text
    assert "figures are speeds, 1 as alone" in text
    record = json.loads(score(capsys, *given, "--json"))
    assert [one["world"] for one in record["scores"]] == ["at once", "with arrivals"]
    figures = record["scores"][0]["policies"]
    assert list(figures) == ["exclusive", "random", "booked"]
    assert figures["exclusive"]["span_over_exclusive"] == {"median": 1.0, "by_seed": [1.0, 1.0]}
    assert figures["exclusive"]["harmful_s"]["median"] == 0.0
    assert figures["random"]["harmful_s"]["median"] > 0.0


def test_a_sheet_gives_coverage_waste_and_worlds(tmp_path, capsys):
    file = tmp_path / "sheet.csv"
    file.write_text(SHEET)
    record = json.loads(score(capsys, "--sheet", file, "--runs", 2, "--tasks", 8, "--policy", "booked", "--json"))
    sizes = record["scores"][0]
    assert (sizes["world"], sizes["runs"], len(sizes["coverage"])) == ("sizes", 8, 2)
    assert "numbers of the command: batch" in sizes["understood"]
    assert [one["world"] for one in record["scores"][1:]] == ["at once", "with arrivals"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "give --pairs CSV, --sheet CSV or --scripts FOLDER"),
        (("--pairs", "no-such.csv"), "no-such.csv: it cannot be read"),
        (("--scripts", "."), "no file in it is a trace"),
        (("--scripts", ".", "--runs", "0"), "--runs 0: a number from 1 to"),
        (("--scripts", ".", "--policy", "best"), "there is no policy 'best'"),
    ],
)
def test_what_cannot_be_scored_is_exit_2_and_a_sentence(tmp_path, monkeypatch, capsys, arguments, why):
    monkeypatch.chdir(tmp_path)
    assert main.main(["lab", "score", *arguments]) == 2
    assert why in capsys.readouterr().err
