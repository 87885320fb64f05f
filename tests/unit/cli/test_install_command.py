"""`slurm-share install` at a desk: what it says, what it ends with, and that it touches nothing unasked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from slurm_share.cli.main import main
from slurm_share.core.settings import Configuration, Settings
from slurm_share.install import apply, files, journal, present, undo
from slurm_share.install.journal import FileChange, InstallJournal
from slurm_share.install.report import InstallReport
from slurm_share.slurm.conf_text import ConfText, Edit, parse
from slurm_share.slurm.records import QueuedJob

PLAIN = "ClusterName=site\nSlurmctldHost=ctl\nGresTypes=gpu\nNodeName=n1 Gres=gpu:2\nPartitionName=gpu Nodes=n1\n"


@pytest.fixture
def conf(tmp_path, monkeypatch):
    """Return a site's slurm.conf, on a host where our packages are and Slurm is not, and where doctor finds nothing."""
    monkeypatch.setattr(apply, "_findings", lambda slurm, after, wanted: ())
    for name in ("PROLOG", "EPILOG", "LUA"):
        (tmp_path / name).touch()
        monkeypatch.setattr(apply, name, str(tmp_path / name))
    folder = tmp_path / "etc"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    (folder / "slurm.conf").write_text(PLAIN)
    return folder / "slurm.conf"


def content(conf):
    return {file.name: file.read_bytes() for file in sorted(conf.parent.iterdir())}


def test_what_is_missing_is_shown_and_not_written(conf, capsys):
    before = content(conf)
    assert main(["install", "--conf", str(conf)]) == 1
    said = capsys.readouterr().out
    assert "+Prolog=/" in said
    assert "+PrologFlags" not in said
    assert content(conf) == before


def test_what_is_written_is_complete_and_comes_out_again(conf, capsys):
    before = content(conf)
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert main(["install", "--conf", str(conf)]) == 0
    assert main(["install", "--check", "--shards", "100", "--conf", str(conf)]) == 1
    first = conf.read_text()
    conf.write_text(first.replace("NodeName=n1", "# by hand\nNodeName=n1"))
    by_hand = content(conf)
    assert main(["install", "--apply", "--shards", "100", "--conf", str(conf)]) == 0
    assert main(["install", "--check", "--shards", "100", "--conf", str(conf)]) == 0
    assert "Gres=gpu:2,shard:200\n" in conf.read_text()
    copies = [conf.with_name(f"slurm.conf.slurm-share-{number}").read_bytes() for number in (1, 2)]
    assert copies == [before["slurm.conf"], by_hand["slurm.conf"]]
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert content(conf) == {"slurm.conf": PLAIN.replace("NodeName=n1", "# by hand\nNodeName=n1").encode()}
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert "nothing to take back" in capsys.readouterr().out


def test_the_settings_for_lua_are_missed_and_written_where_config_toml_is(conf, tmp_path, monkeypatch, capsys):
    """Also where no line is missing; a config.toml that is wrong keeps nobody from the lines."""
    config_file = tmp_path / "config.toml"
    monkeypatch.setattr(apply, "CONFIG_FILE", config_file)
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    config_file.write_text("mode = 'on'\n")
    capsys.readouterr()
    assert main(["install", "--check", "--shards", "4", "--conf", str(conf)]) == 1
    assert "job_submit_settings.lua is missing: --apply writes it, and so does" in capsys.readouterr().out
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert f"wrote {config_file.with_name('job_submit_settings.lua')}" in capsys.readouterr().out
    assert main(["install", "--check", "--conf", str(conf)]) == 0
    config_file.write_text("mode = on\n")
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert "until it is right, and `slurm-share config write-lua` was run, no job is shared" in capsys.readouterr().out


def test_a_file_without_a_newline_at_its_end_has_none_again(conf):
    conf.write_text(PLAIN.rstrip("\n"))
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert conf.read_text() == PLAIN.rstrip("\n")


def test_lines_of_the_sites_own_in_a_file_that_we_made_stay(conf, capsys):
    plugstack = conf.with_name("plugstack.conf")
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    plugstack.write_text(plugstack.read_text() + "optional /x/pyxis.so\n")
    capsys.readouterr()
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert "slurm-share off --cluster" in capsys.readouterr().out
    assert plugstack.read_text() == "optional /x/pyxis.so\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--conf", "/nowhere/slurm.conf"], "there is no such file"),
        (["--apply", "--conf", "/nowhere/slurm.conf"], "cannot be written to"),
        (["--undo", "--conf", "/nowhere/slurm.conf"], "cannot be written to"),
        (["--apply", "--conf", "/run/slurm/conf/slurm.conf"], "run this on the controller"),
        (["--shards", "-1"], "--shards=-1"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_two(words, says, capsys):
    assert main(["install", *words]) == 2
    assert says in capsys.readouterr().err


def test_hooks_that_are_not_there_are_not_named_in_slurm_conf(conf, monkeypatch, capsys):
    monkeypatch.setattr(apply, "PROLOG", "/nowhere/prolog")
    before = content(conf)
    assert main(["install", "--apply", "--conf", str(conf)]) == 2
    assert "/nowhere/prolog is not on this host" in capsys.readouterr().err
    assert content(conf) == before


def test_an_interrupted_apply_is_named_and_then_set_right(conf, capsys):
    change = FileChange(str(conf), PLAIN.encode(), b"new\n", (), (Edit(str(conf), "new"),))
    (conf.parent / journal.NAME).write_bytes(journal.encode(InstallJournal("applying", "d", (change,))))
    conf.write_bytes(b"new\n")
    assert main(["install", "--conf", str(conf)]) == 2
    assert "was interrupted here" in capsys.readouterr().err
    assert conf.read_bytes() == b"new\n"
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert content(conf) == {"slurm.conf": PLAIN.encode()}


def test_what_changes_other_peoples_jobs_needs_the_word(conf, capsys):
    conf.write_text(f"Prolog=/site/prolog\n{PLAIN}")
    assert main(["install", "--check", "--conf", str(conf)]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "--with alloc (not needed, and not written without this option) PrologFlags=Alloc: the Prolog of every job"
        in said
    )
    assert "0.1 s more each" in said
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert "PrologFlags" not in conf.read_text()
    assert main(["install", "--check", "--conf", str(conf)]) == 0
    assert main(["install", "--apply", "--with", "alloc", "--conf", str(conf)]) == 0
    assert "PrologFlags=Alloc\n" in conf.read_text()
    assert "LaunchParameters" not in conf.read_text()
    assert main(["install", "--check", "--with", "interactive-step", "--conf", str(conf)]) == 1
    assert main(["install", "--apply", "--with", "interactive-step", "--conf", str(conf)]) == 0
    assert "LaunchParameters=use_interactive_step\n" in conf.read_text()
    capsys.readouterr()
    assert main(["install", "--check", "--conf", str(conf)]) == 0
    assert "for you to choose" not in capsys.readouterr().out


def test_what_a_file_says_reaches_no_terminal_as_it_is(conf, capsys):
    conf.write_text(PLAIN + "Include \x1b]0;gone\x07.conf\n\tKillWait=3 # \x1b[2J\x9b31m \r\n")
    assert main(["install", "--check", "--conf", str(conf)]) == 2
    said = "".join(capsys.readouterr())
    assert "\\x1b[2J" in said
    assert "\tKillWait=3" in said
    assert "\\x1b]0;gone" in said
    assert not {"\x1b", "\x07", "\x9b"} & set(said)


def test_shards_without_gpus_are_refused_and_nothing_is_written(conf, capsys):
    conf.write_text(PLAIN.replace(" Gres=gpu:2", ""))
    before = content(conf)
    assert main(["install", "--apply", "--shards", "--conf", str(conf)]) == 2
    assert "has GPUs, so there are no parts of one" in capsys.readouterr().err
    assert content(conf) == before


@pytest.mark.parametrize("word", ["--apply", "--undo", "--check"])
def test_a_journal_that_names_another_file_is_not_believed(conf, tmp_path, capsys, word):
    victim = tmp_path / "victim"
    victim.write_text("as it is\n")
    change = FileChange(str(victim), None, b"x", (), (Edit(str(victim), "as it is"),))
    (conf.parent / journal.NAME).write_bytes(journal.encode(InstallJournal("applied", "d", (change,))))
    before = content(conf)
    assert main(["install", word, "--conf", str(conf)]) == 2
    assert f"names {victim}, which is none of Slurm's files here" in capsys.readouterr().err
    assert victim.read_text() == "as it is\n"
    assert content(conf) == before


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (None, "it is unknown whether"),
        (0, "no shared job runs"),
        (2, "run now: 2 (1 of alice, 2 of alice)"),
        (12, ", 10 of alice and 2 more)"),
    ],
)
def test_how_many_shares_run_is_said_where_slurm_answers(conf, capsys, monkeypatch, count, says):
    known = {"name": "j", "user": "alice", "uid": 1, "partition": "gpu", "states": ("RUNNING",), "share": "2"}
    jobs = None if count is None else tuple(QueuedJob(job_id=number + 1, **known) for number in range(count))
    for module in (apply, undo):
        monkeypatch.setattr(module, "read_shares", lambda: jobs)
    assert main(["install", "--check", "--conf", str(conf)]) == 1
    assert says not in capsys.readouterr().out
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert main(["install", "--check", "--conf", str(conf)]) == 0
    assert says in capsys.readouterr().out
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert says in capsys.readouterr().out


def test_a_file_that_was_removed_meanwhile_stays_away(conf):
    plugstack = conf.with_name("plugstack.conf")
    plugstack.write_text("optional /x/pyxis.so\n")
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    plugstack.unlink()
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert not plugstack.exists()


def test_files_without_a_folder_are_beside_slurm_conf(conf, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    conf.write_text("PlugStackConfig=stack.conf\nProlog=p.d/*\n" + PLAIN)
    (conf.parent / "p.d").mkdir()
    (conf.parent / "p.d/zz").write_text("#!/bin/sh\nexec slurm-share-prolog\n")
    assert main(["install", "--apply", "--with", "alloc", "--conf", str(conf)]) == 0
    assert "share_gpu.so" in (conf.parent / "stack.conf").read_text()
    assert conf.read_text().count("Prolog=") == 1
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("", False),
        ("Prolog=/site/p.sh", False),
        ("Prolog=/gone/slurm-share-prolog", True),
        ("Epilog=/opt/slurm-share/bin/slurm-share-epilog", True),
        ("epilog=own.sh", True),
        ("Epilog=talks.sh", False),
        ("Include more.conf", True),
    ],
)
def test_the_packages_are_told_who_names_our_hooks(conf, capsys, line, named):
    """By the real files: includes, wrappers, names without a folder. Not by a comment."""
    conf.write_text(f"{line}\n{PLAIN}")
    conf.with_name("own.sh").write_text("#!/bin/sh\nexec slurm-share-epilog\n")
    conf.with_name("talks.sh").write_text("#!/bin/sh\n# slurm-share-epilog some day\n")
    conf.with_name("more.conf").write_text("Prolog=/opt/slurm-share/bin/slurm-share-prolog\n")
    assert main(["install", "--names-hooks", "--conf", str(conf)]) == named
    assert bool(capsys.readouterr().out) == named


@pytest.mark.parametrize(("text", "named"), [('dofile("/usr/lib/slurm-share/job_submit.lua")', True), ("f()", False)])
def test_the_packages_are_told_who_calls_our_script(conf, text, named):
    """A file that is not there calls nothing; a slurm.conf that is not there is no answer."""
    assert main(["install", "--names-lua", "--conf", str(conf)]) == 0
    conf.with_name("job_submit.lua").write_text(text)
    assert main(["install", "--names-lua", "--conf", str(conf)]) == named
    assert main(["install", "--names-hooks", "--conf", "/nowhere/slurm.conf"]) == 2


def test_a_user_is_shown_the_lines_though_the_journal_is_roots(conf, monkeypatch):
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    able = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != journal.NAME and able(path, mode))

    def refuse(folder):
        raise AssertionError("not to be read")

    monkeypatch.setattr(files, "read_journal", refuse)
    assert main(["install", "--check", "--conf", str(conf)]) == 0


def test_lua_is_not_asked_of_a_slurm_without_it(tmp_path):
    """slurmctld would not start again. Without any submit plugin it is no controller: nothing is said."""
    plain = ConfText(Path("f"), parse(PLAIN, Path("f")))
    folder = tmp_path / "usr/lib/x86_64-linux-gnu/slurm-wlm"
    folder.mkdir(parents=True)
    assert present.without_lua(plain, tmp_path) == []
    (folder / "job_submit_require_timelimit.so").touch()
    (said,) = present.without_lua(plain, tmp_path)
    assert "no job_submit_lua.so" in said
    elsewhere = ConfText(Path("f"), parse("PluginDir=/site/lib\n", Path("f")))
    assert present.without_lua(elsewhere, tmp_path) == []
    (folder / "job_submit_lua.so").touch()
    assert present.without_lua(plain, tmp_path) == []


def test_lines_that_were_lost_and_written_again_are_taken_back(conf):
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    conf.write_text(PLAIN)
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert conf.read_text() == PLAIN


def test_an_undo_takes_out_the_comment_of_every_apply(conf):
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert main(["install", "--apply", "--with", "interactive-step", "--conf", str(conf)]) == 0
    assert conf.read_text().count("# slurm-share: put here by") == 2
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert conf.read_text() == PLAIN


@pytest.mark.parametrize("word", ["--check", "--apply"])
def test_what_the_controller_sent_is_no_place_for_lines(conf, capsys, monkeypatch, word):
    monkeypatch.setattr(apply, "CONFIGLESS", conf.parent)
    before = content(conf)
    assert main(["install", word, "--conf", str(conf)]) == 2
    assert "run this on the controller" in capsys.readouterr().err
    assert content(conf) == before


def test_the_command_that_is_shown_is_about_the_same_file(conf, capsys):
    assert main(["install", "--shards", "4", "--conf", str(conf)]) == 1
    assert f"slurm-share install --apply --shards 4 --conf {conf}\n" in capsys.readouterr().out


def test_shards_of_a_node_that_is_gone_keep_nobody_from_an_undo(conf):
    both = PLAIN + "NodeName=n2 Gres=gpu:2\n"
    conf.write_text(both)
    assert main(["install", "--apply", "--shards", "4", "--conf", str(conf)]) == 0
    for file in (conf, conf.with_name("gres.conf")):
        kept = [line for line in file.read_text().splitlines() if not line.startswith("NodeName=n1 ")]
        file.write_text("\n".join(kept) + "\n")
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert conf.read_text() == both.replace("NodeName=n1 Gres=gpu:2\n", "")


def as_json(capsys, *words):
    """Return (the record, the exit code, standard error)."""
    capsys.readouterr()
    code = main(["install", "--json", *words])
    said = capsys.readouterr()
    return msgspec.json.decode(said.out, type=InstallReport), code, said.err


def test_what_is_missing_refused_chosen_and_written_as_a_record(conf, capsys):
    """The same exit codes as in words; every file with its lines, and where the old one is."""
    text = f"# Ansible managed\nProlog=/site/prolog\n{PLAIN}"
    conf.write_text(text)
    found, code, _ = as_json(capsys, "--check", "--conf", str(conf))
    assert (found.action, found.exit_code, code, found.changed) == ("check", 1, 1, False)
    assert found.slurm_conf == str(conf)
    (slurm,) = (file for file in found.files if file.file == str(conf))
    assert (slurm.is_new, slurm.copy) == (False, "")
    prolog = next(line for line in slurm.lines if line.key == "Prolog")
    assert (prolog.line, prolog.at) == ("Prolog=/opt/slurm-share/bin/slurm-share-prolog", 3)
    assert "+JobSubmitPlugins=lua" in slurm.diff
    assert [choice.word for choice in found.choices if choice.is_needed] == ["managed"]
    assert "not checked, since they did not answer: n1" in " ".join(found.notes)
    assert found.nodes.silent == ("n1",)

    found, code, err = as_json(capsys, "--apply", "--conf", str(conf))
    assert (found.exit_code, code, found.changed) == (2, 2, False)
    assert "--with managed" in found.refusals[-1]
    assert found.error
    assert found.error in err
    assert conf.read_text() == text

    found, code, _ = as_json(capsys, "--apply", "--with", "managed", "--conf", str(conf))
    assert (found.exit_code, code, found.changed, found.chosen) == (0, 0, True, ("managed",))
    assert {file.file: file.copy for file in found.files}[str(conf)] == f"{conf}.slurm-share-1"
    found, code, _ = as_json(capsys, "--apply", "--with", "managed", "--conf", str(conf))
    assert (code, found.changed, found.files) == (0, False, ())
    found, code, _ = as_json(capsys, "--undo", "--conf", str(conf))
    assert (found.action, code, found.changed) == ("undo", 0, True)
    assert "-JobSubmitPlugins=lua" in next(file.diff for file in found.files if file.file == str(conf))
    assert conf.read_text() == text


@pytest.mark.parametrize(
    "words", [["--conf", "/nowhere/slurm.conf"], ["--force"], ["--shards", "-1"], ["--names-hooks"]]
)
def test_an_error_is_a_record_too(capsys, words):
    found, code, err = as_json(capsys, *words)
    assert (found.exit_code, code) == (2, 2)
    assert found.error
    assert found.error in err


def test_bytes_that_are_no_text_are_escaped_in_the_record(conf, capsys):
    conf.write_bytes(PLAIN.encode() + b"# f\xfcr alle\nPrologFlags=Serial # \xfc\n")
    assert main(["install", "--json", "--conf", str(conf)]) == 1
    out = capsys.readouterr().out
    assert "\\udcfc" in out
    assert out.isascii()


def test_a_site_whose_nodes_are_not_all_ours_gets_wrappers(conf, capsys, monkeypatch):
    """Files that can be run, before the line that names them; --undo leaves them until slurmd names them no more."""
    settings = Settings(node_feature="here")
    monkeypatch.setattr(present, "_configuration", lambda: Configuration(settings, {}))
    conf.write_text(PLAIN.replace("NodeName=n1", "NodeName=n1 Feature=here"))
    before = content(conf)
    assert main(["install", "--apply", "--with", "partial", "--conf", str(conf)]) == 0
    assert conf.read_text().count("\nProlog=slurm-share-prolog.sh\n") == 1
    assert "/opt/slurm-share" not in conf.read_text()
    for key in ("prolog", "epilog"):
        wrapper = conf.with_name(f"slurm-share-{key}.sh")
        assert wrapper.stat().st_mode & 0o777 == 0o755
        done = subprocess.run([wrapper], env={}, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert f"hook=/opt/slurm-share/bin/slurm-share-{key}\n" in wrapper.read_text()
    assert main(["install", "--check", "--conf", str(conf)]) == 0
    assert main(["install", "--names-hooks", "--conf", str(conf)]) == 0
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert "slurm-share-prolog.sh stays: Slurm does not answer" in capsys.readouterr().out
    monkeypatch.setattr(undo, "read_hooks_in_force", lambda: frozenset({"/etc/slurm/slurm-share-epilog.sh"}))
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert content(conf).keys() == {"slurm.conf", "slurm-share-epilog.sh"}
    monkeypatch.setattr(undo, "read_hooks_in_force", lambda: frozenset({"/site/epilog"}))
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert content(conf) == before


def test_a_wrapper_with_the_sites_own_lines_is_not_taken_away(conf, capsys, monkeypatch):
    settings = Settings(node_feature="here")
    monkeypatch.setattr(present, "_configuration", lambda: Configuration(settings, {}))
    monkeypatch.setattr(undo, "read_hooks_in_force", frozenset)
    conf.write_text(PLAIN.replace("NodeName=n1", "NodeName=n1 Feature=here"))
    assert main(["install", "--apply", "--with", "partial", "--conf", str(conf)]) == 0
    wrapper = conf.with_name("slurm-share-prolog.sh")
    theirs = wrapper.read_text().replace("#!/bin/sh\n", "#!/bin/sh\n/site/check\n")
    wrapper.write_text(theirs)
    for _ in range(2):
        capsys.readouterr()
        assert main(["install", "--undo", "--conf", str(conf)]) == 0
        assert "slurm-share-prolog.sh stays: it is not as slurm-share wrote it" in capsys.readouterr().out
        assert content(conf).keys() == {"slurm.conf", "slurm-share-prolog.sh"}
    assert wrapper.read_text() == theirs
    assert main(["install", "--undo", "--force", "--conf", str(conf)]) == 0
    assert content(conf).keys() == {"slurm.conf"}


def test_a_wrapper_that_slurm_cannot_run_is_named(conf, capsys, monkeypatch):
    settings = Settings(node_feature="here")
    monkeypatch.setattr(present, "_configuration", lambda: Configuration(settings, {}))
    conf.write_text(PLAIN.replace("NodeName=n1", "NodeName=n1 Feature=here"))
    assert main(["install", "--apply", "--with", "partial", "--conf", str(conf)]) == 0
    wrapper = conf.with_name("slurm-share-epilog.sh")
    wrapper.chmod(0o644)
    for words in (["--check"], ["--check", "--with", "partial"], ["--apply", "--with", "partial"]):
        capsys.readouterr()
        assert main(["install", *words, "--conf", str(conf)]) == 2
        said = capsys.readouterr()
        assert f"chmod 755 {wrapper}, then run this again" in said.err
        assert "slurm-share-prolog.sh has no mode" not in said.err
        assert "no line is missing" not in said.out
    wrapper.chmod(0o755)
    assert main(["install", "--check", "--with", "partial", "--conf", str(conf)]) == 0


def test_where_nodes_do_without_the_package_it_is_not_asked_for_on_each(conf, capsys, monkeypatch):
    settings = Settings(node_feature="here")
    monkeypatch.setattr(present, "_configuration", lambda: Configuration(settings, {}))
    conf.write_text(PLAIN.replace("NodeName=n1", "NodeName=n1 Feature=here"))
    assert main(["install", "--apply", "--with", "partial", "--conf", str(conf)]) == 0
    said = capsys.readouterr().out
    assert "\nnext:\n  1. where Slurm's files" in said
    assert "has no Prolog of ours is drained" not in said
    assert main(["install", "--apply", "--shards", "100", "--conf", str(conf)]) == 0
    assert "has no Prolog of ours is drained" not in capsys.readouterr().out
    assert main(["install", "--undo", "--force", "--conf", str(conf)]) == 0
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert "\nnext:\n  0. a node that was not checked" in capsys.readouterr().out


def test_lines_that_were_written_for_all_nodes_become_wrappers(conf, monkeypatch):
    settings = Settings(node_feature="here")
    monkeypatch.setattr(present, "_configuration", lambda: Configuration(settings, {}))
    conf.write_text(PLAIN.replace("NodeName=n1", "NodeName=n1 Feature=here"))
    before = conf.read_text()
    assert main(["install", "--apply", "--conf", str(conf)]) == 0
    assert main(["install", "--apply", "--with", "partial", "--conf", str(conf)]) == 0
    assert [line for line in conf.read_text().splitlines() if line.startswith(("Prolog=", "Epilog="))] == [
        "Prolog=slurm-share-prolog.sh",
        "Epilog=slurm-share-epilog.sh",
    ]
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert conf.read_text() == before


def test_a_managed_file_is_not_written_without_the_word(conf, capsys):
    conf.write_text(f"# Ansible managed\n{PLAIN}")
    assert main(["install", "--apply", "--conf", str(conf)]) == 2
    said = "".join(capsys.readouterr())
    assert "Ansible writes these lines, and its next run removes" in said
    assert "    at the end:  Prolog=/opt/slurm-share/bin/slurm-share-prolog\n" in said
    assert "slurm-share install --apply --with managed" in said
    assert conf.read_text() == f"# Ansible managed\n{PLAIN}"
    assert main(["install", "--apply", "--with", "managed", "--conf", str(conf)]) == 0
    assert main(["install", "--undo", "--conf", str(conf)]) == 0
    assert conf.read_text() == f"# Ansible managed\n{PLAIN}"


def test_the_schema_that_is_shipped_is_the_records():
    """packaging/docs/install.schema.json, which `python -c` of this test's line brings up to date."""
    shipped = Path(__file__).resolve().parents[3] / "packaging/docs/install.schema.json"
    assert json.loads(shipped.read_text()) == json.loads(json.dumps(msgspec.json.schema(InstallReport)))
