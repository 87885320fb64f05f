"""`slurm-share prove`: what it prints and writes, its exit codes, and when it does not begin."""

from __future__ import annotations

import io
import json
import os

import pytest

from slurm_share import prove as package
from slurm_share.cli import main
from slurm_share.prove.proof import Proof
from slurm_share.prove.rules.promises import Verdict

as_root = pytest.mark.skipif(os.getuid() != 0, reason="NOT TESTED: only root may call it")


def verdict(name, outcome, *, is_promised=True, why=""):
    return Verdict(promise=name, says="a task gets its cap", outcome=outcome, is_promised=is_promised, why=why,
                   measured={"got_mib": 8192})  # fmt: skip


@pytest.fixture
def proved(monkeypatch):
    """Make `prove` return these verdicts; return the calls."""
    calls = []

    def of(*verdicts, simulated=False):
        def prove(settings, index, user, begin, say, only):
            calls.append((index, user, only))
            proof = Proof(node="n1", driver="620.1", gpu="GPU-1", gpu_name="H100", gpu_index=index or 0,
                          simulated=simulated, cgroup=2, user=user, cap_mib=4096)  # fmt: skip
            begin(proof)
            for one in verdicts:
                say(one)
            return Proof(**{name: getattr(proof, name) for name in proof.__struct_fields__} | {"verdicts": verdicts})

        monkeypatch.setattr("slurm_share.prove.proof.prove", prove)
        return calls

    return of


@as_root
def test_all_promises_hold(proved, capsys):
    calls = proved(verdict("total", "holds"))
    assert main.main(["prove", "--yes"]) == 0
    said = capsys.readouterr().out
    assert "holds              total: a task gets its cap" in said
    assert "measured: got_mib 8192" in said
    assert "n1, GPU 0 (H100), driver 620.1, as nobody" in said
    assert "SIMULATED" not in said
    assert calls == [(None, "nobody", [])]


@as_root
@pytest.mark.parametrize(("is_promised", "code"), [(True, 1), (False, 0)])
def test_only_a_promise_that_fails_is_an_error(proved, capsys, is_promised, code):
    proved(verdict("total", "holds"), verdict("fork", "does not hold here", is_promised=is_promised, why="got more"))
    assert main.main(["prove", "--yes"]) == code
    said = capsys.readouterr().out
    assert ("PROMISED, AND NOT HELD: fork" in said) is is_promised
    assert ("(not promised)" in said) is not is_promised
    assert "got more" in said


@as_root
def test_a_simulated_gpu_is_called_so_on_every_screen_and_in_the_json(proved, capsys, tmp_path):
    proved(verdict("total", "holds"), simulated=True)
    file = tmp_path / "proof.json"
    assert main.main(["prove", "--yes", "--json", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [n for n, line in enumerate(lines) if line.startswith("SIMULATED GPU")] == [0, len(lines) - 3]
    found = json.loads(file.read_text())
    assert (found["schema"], found["simulated"], found["verdicts"][0]["outcome"]) == (1, True, "holds")


@as_root
def test_a_file_that_cannot_be_written_is_refused_before_the_proof_and_none_is_left_of_a_proof_that_did_not_begin(
    proved, capsys, monkeypatch, tmp_path
):
    calls = proved(verdict("total", "holds"))
    assert main.main(["prove", "--yes", "--json", str(tmp_path / "missing" / "proof.json")]) == 2
    assert "No such file or directory" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main.main(["prove", "--json", str(tmp_path / "proof.json")]) == 2
    assert [*tmp_path.iterdir()] == calls == []


@as_root
def test_the_lines_of_a_promise_fit_a_terminal_of_80_columns(proved, capsys, monkeypatch):
    proved(verdict("memory-unseen-gpu", "not on this driver", why="needs driver 615 or newer; " + "here got more " * 9))
    monkeypatch.setattr("slurm_share.core.terminal.width", lambda: 80)
    assert main.main(["prove", "--yes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line[:19].strip() for line in lines[1:-2]] == ["not on this driver", *[""] * (len(lines) - 4)]


@as_root
def test_json_on_standard_output_is_all_of_it(proved, capsys):
    proved(verdict("total", "holds"), simulated=True)
    assert main.main(["prove", "--yes", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["simulated"] is True
    assert "SIMULATED" in err


@as_root
def test_it_does_not_begin_without_a_yes(proved, capsys, monkeypatch):
    calls = proved(verdict("total", "holds"))
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main.main(["prove"]) == 2
    assert "--yes" in capsys.readouterr().err
    terminal = io.StringIO("n\n")
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)
    assert main.main(["prove"]) == 2
    assert calls == []


def test_it_is_for_root(monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main.main(["prove", "--yes"]) == 2
    assert "prove is for root" in capsys.readouterr().err


@as_root
def test_gpu_user_and_promises_are_passed_on(proved):
    calls = proved()
    assert main.main(["prove", "--yes", "--gpu", "2", "--user", "daemon", "--only", "total,elastic"]) == 0
    assert calls == [(2, "daemon", ["total", "elastic"])]


@as_root
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--only", "totall"], "there is no promise"),
        (["--only", ","], "--only needs the names of promises"),
        (["--user", "no-such-user"], "there is no user"),
        (["--user", "root"], "root is bound by nothing"),
        (["--gpu", "99"], "no GPU 99"),
    ],
)
def test_a_wrong_word_is_refused_with_a_sentence(monkeypatch, capsys, words, why):
    from slurm_share.node.records import Gpu
    from slurm_share.prove import proof
    from slurm_share.share import methods

    offer = methods.NodeOffer(driver="620.1", gpus=(Gpu("GPU-1", 0, 0, "H100", 80000),))
    monkeypatch.setattr(proof.node_offer, "read_offer", lambda _settings: offer)
    assert main.main(["prove", "--yes", *words]) == 2
    assert why in capsys.readouterr().err


def test_the_package_offers_what_the_command_needs():
    assert callable(package.prove)
