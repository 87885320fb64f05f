"""Which lines a site lacks, where they go, and that they come out again."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_share.install.rules.choices import ALLOC, INTERACTIVE_STEP
from slurm_share.install.rules.edits import difference, put_in, take_out
from slurm_share.install.rules.lines import EPILOG, LUA, PLUGIN, PROLOG, SlurmFiles, site_lines
from slurm_share.share.rules.site import OWN_LUA
from slurm_share.slurm.account_limits import GpuLimit
from slurm_share.slurm.conf_text import ConfText, parse

PLAIN = """\
ClusterName=site
SlurmctldHost=ctl
GresTypes=gpu
NodeName=gpu[01-02] CPUs=64 Gres=gpu:h200:4 State=UNKNOWN
PartitionName=gpu Nodes=gpu[01-02] Default=YES
"""
SLURM, PLUG, GRES, LUA_FILE = "/e/slurm.conf", "/e/plugstack.conf", "/e/gres.conf", "/e/job_submit.lua"


def present(slurm=PLAIN, plugstack=None, gres="Name=gpu File=/dev/nvidia[0-3]\n", lua=None, **more):
    """Return a site with these texts; None: no such file."""
    texts = {SLURM: slurm, PLUG: plugstack, GRES: gres, LUA_FILE: lua}
    confs = [ConfText(Path(name), parse(texts[name] or "", Path(name))) for name in (SLURM, PLUG, GRES)]
    return SlurmFiles(*confs, {name: text for name, text in texts.items() if text is not None}, LUA_FILE, **more)


TAKEN = (ALLOC, INTERACTIVE_STEP)


def after(site, shards=0, taken=TAKEN):
    """Return the texts with what is missing in them, with no refusal on the way."""
    lines = site_lines(site, shards, taken)
    assert lines.refusals == ()
    names = dict.fromkeys(edit.file for edit in lines.edits)
    return {
        name: put_in(site.texts.get(name, ""), [edit for edit in lines.edits if edit.file == name]) for name in names
    }


def values(text, key):
    return ConfText(Path("f"), parse(text, Path("f"))).values(key)


def test_a_plain_site_gets_every_line():
    texts = after(present(), taken=())
    assert texts[SLURM].startswith(PLAIN)
    assert values(texts[SLURM], "Prolog") == (PROLOG,)
    assert values(texts[SLURM], "Epilog") == (EPILOG,)
    assert values(texts[SLURM], "PrologFlags") == ()
    assert values(texts[SLURM], "LaunchParameters") == ()
    assert values(texts[SLURM], "JobSubmitPlugins") == ("lua",)
    assert texts[PLUG] == f"optional {PLUGIN}\n"
    assert texts[LUA_FILE] == f"{OWN_LUA}\n"
    assert GRES not in texts


def test_a_complete_site_lacks_nothing():
    texts = {GRES: "Name=gpu File=/dev/nvidia[0-3]\n", **after(present(), 720720)}
    again = present(texts[SLURM], texts[PLUG], texts[GRES], texts[LUA_FILE])
    assert site_lines(again, 720720).edits == ()


@pytest.mark.parametrize(
    ("line", "key", "becomes"),
    [
        ("PrologFlags=X11", "PrologFlags", "X11"),
        ("PrologFlags=Contain,DeferBatch", "PrologFlags", "Contain,DeferBatch"),
        ("PrologFlags=DeferBatch", "PrologFlags", "DeferBatch,Alloc"),
        ("PrologFlags = Serial # one at a time", "PrologFlags", "Serial,Alloc"),
        ('LaunchParameters="test_exec"', "LaunchParameters", "test_exec,use_interactive_step"),
        ("LaunchParameters=none", "LaunchParameters", "use_interactive_step"),
        ("jobsubmitplugins=require_timelimit", "JobSubmitPlugins", "require_timelimit,lua"),
        ("PrologFlags=Serial\nPrologFlags=DeferBatch", "PrologFlags", "DeferBatch,Alloc"),
        ("MpiDefault=none PrologFlags=Serial KillWait=2", "PrologFlags", "Serial,Alloc"),
    ],
)
def test_a_list_is_made_longer_where_it_stands(line, key, becomes):
    """The last line of the key, its comment and neighbours kept; words that say the same are enough."""
    text = after(present(f"{line}\n{PLAIN}"))[SLURM]
    assert values(text, key)[-1] == becomes
    assert ("# one at a time" in line) == ("# one at a time" in text)
    assert ("KillWait=2" in line) == (values(text, "KillWait") == ("2",))


def test_our_epilog_comes_before_the_sites_and_our_prolog_after():
    site = present(f"Prolog=/s/pro\nProlog=/s/pro.d/*\nEpilog=/s/epi\n{PLAIN}")
    text = after(site)[SLURM]
    assert values(text, "Prolog") == ("/s/pro", "/s/pro.d/*", PROLOG)
    assert values(text, "Epilog") == (EPILOG, "/s/epi")
    assert text.index("/s/pro.d") < text.index(PROLOG) < text.index("ClusterName")


def test_the_last_line_of_the_file_may_be_the_prolog():
    for end in ("", "\n"):
        assert values(after(present(f"{PLAIN}Prolog=/s/pro{end}"))[SLURM], "Prolog") == ("/s/pro", PROLOG)


def test_a_link_in_the_sites_folder_is_enough():
    globs = {"/s/pro.d/*": ("/s/pro.d/zz", PROLOG), "/s/epi.d/*": ("/s/epi.d/a",)}
    text = after(present(f"Prolog=/s/pro.d/*\nEpilog=/s/epi.d/*\n{PLAIN}", hook_globs=globs))[SLURM]
    assert values(text, "Prolog") == ("/s/pro.d/*",)
    assert values(text, "Epilog") == (EPILOG, "/s/epi.d/*")


def test_included_files_are_changed_in_their_place():
    """A line that an included file has is changed there, and nothing is put into the first."""
    lines = (*parse(PLAIN, Path(SLURM)), *parse("PrologFlags=Serial\n", Path("/e/more.conf")))
    site = present()
    texts = {**site.texts, "/e/more.conf": "PrologFlags=Serial\n"}
    site = SlurmFiles(ConfText(Path(SLURM), lines), site.plugstack, site.gres, texts, LUA_FILE)
    assert after(site)["/e/more.conf"] == "PrologFlags=Serial,Alloc\n"


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("PrologFlags=Contain,RunInJob\n", {}, "RunInJob"),
        ("PrologFlags=Serial,\\\nDeferBatch\n", {}, "is not on one line"),
        ("PrologFlags=Serial JobSubmitPlugins=x\n", {}, "several values"),
        ("", {"release": (23, 11)}, "needs 24.11"),
        ("", {"lua": "function slurm_job_submit() return 0 end\n"}, "share.submit(job, partitions, uid)"),
        ("", {"lua": f'-- dofile("{LUA}")\n'}, "is the site's own"),
    ],
)
def test_what_only_a_person_can_decide_is_said(text, more, says):
    assert says in " ".join(site_lines(present(f"{text}{PLAIN}", **more), taken=TAKEN).refusals)


def test_a_script_that_calls_ours_is_left_alone():
    for lua in (f'local share = dofile("{LUA}")\n', 'M.VARIABLE = "SHARE_GPU"\nM.VERDICT = "slurm-share"\n'):
        assert LUA_FILE not in after(present(lua=lua))


def test_a_plugin_that_is_named_already_is_not_named_again():
    assert PLUG not in after(present(plugstack=f"required {PLUGIN} state=/run/x\n"))
    assert after(present(plugstack="optional /x/pyxis.so\n"))[PLUG] == f"optional /x/pyxis.so\noptional {PLUGIN}\n"


@pytest.mark.parametrize(
    ("gres", "shards", "conf"),
    [
        ("gpu:h200:4", "shard:h200:2882880", ["NodeName=gpu[01-02] Name=shard Type=h200 Count=2882880"]),
        ("gpu:4", "shard:2882880", ["NodeName=gpu[01-02] Name=shard Count=2882880"]),
        ("gpu", "shard:720720", ["NodeName=gpu[01-02] Name=shard Count=720720"]),
    ],
)
def test_shards_are_as_many_as_the_gpus_hold(gres, shards, conf):
    texts = after(present(PLAIN.replace("gpu:h200:4", gres)), 720720)
    assert f"Gres={gres},{shards} State=UNKNOWN" in texts[SLURM]
    assert [line for line in texts[GRES].splitlines() if "shard" in line and "#" not in line] == conf
    assert values(texts[SLURM], "GresTypes") == ("gpu,shard",)


def test_shards_of_several_types_name_the_files_of_their_gpus():
    """Without, slurmd ends with `multiple configurations without "File"` (24.11 and 26.05)."""
    text = PLAIN.replace("gpu:h200:4", "gpu:a:2(S:0),gpu:b:2,nic:2")
    lines = (
        "Name=gpu Type=a File=/dev/nvidia[0-1]",
        "NodeName=gpu[01-02] Name=gpu Type=b File=/dev/nvidia2 Cores=0-7",
        "NodeName=gpu[01-02] Name=gpu Type=b File=/dev/nvidia3 Cores=8-15",
        "NodeName=other Name=gpu Type=b File=/dev/nvidia[0-7]",
    )
    texts = after(present(text, gres="\n".join([*lines, ""])), 720720)
    assert "Gres=gpu:a:2(S:0),gpu:b:2,nic:2,shard:a:1441440,shard:b:1441440 State=UNKNOWN" in texts[SLURM]
    assert [line for line in texts[GRES].splitlines() if "shard" in line and "#" not in line] == [
        "NodeName=gpu[01-02] Name=shard Type=a Count=1441440 File=/dev/nvidia[0-1]",
        "NodeName=gpu[01-02] Name=shard Type=b Count=720720 File=/dev/nvidia2",
        "NodeName=gpu[01-02] Name=shard Type=b Count=720720 File=/dev/nvidia3",
    ]
    for gres in ("", lines[0], "AutoDetect=nvml", f"{lines[0]}\n{lines[1]}"):
        said = site_lines(present(text, gres=f"{gres}\n"), 720720).refusals
        assert any("has GPUs of several types, for which slurmd wants File= in each shard line" in one for one in said)


def test_nodes_that_have_their_gpus_from_the_default_line():
    text = "GresTypes=gpu\nNodeName=DEFAULT Gres=gpu:2\nNodeName=a[1-2] CPUs=2\nNodeName=b CPUs=2 Gres=craynetwork:4\n"
    texts = after(present(text), 720720)
    assert "NodeName=DEFAULT Gres=gpu:2,shard:1441440\n" in texts[SLURM]
    assert texts[GRES].endswith("NodeName=a[1-2] Name=shard Count=1441440\n")


def test_open_partitions_are_named_with_the_word_of_the_release():
    more = "NodeName=c1 CPUs=4\nPartitionName=cpu Nodes=c1\nPartitionName=own Nodes=gpu01 ExclusiveUser=YES\n"
    for release, word in (((26, 5), "Exclusive=USER"), ((24, 11), "ExclusiveUser=YES")):
        advice = site_lines(present(PLAIN + more, release=release)).advice
        (said,) = [one for one in advice if one.startswith("partition ")]
        assert word in said
        assert said.startswith("partition gpu:")


@pytest.mark.parametrize(
    ("line", "open_ones"),
    [
        ("", {"alloc": False, "interactive-step": False}),
        ("LaunchParameters=use_interactive_step\nPrologFlags=X11", {}),
        ("PrologFlags=Serial", {"alloc": False, "interactive-step": False}),
        ("Prolog=/s/p.sh\nPrologFlags=Contain", {"interactive-step": False}),
    ],
)
def test_what_changes_other_peoples_jobs_is_theirs_to_choose(line, open_ones):
    """A line that the site already has counts as chosen; a line that shares do not need is not among the lines."""
    lines = site_lines(present(f"{line}\n{PLAIN}"))
    assert {choice.word: choice.is_needed for choice in lines.choices} == open_ones
    assert not {"LaunchParameters", "PrologFlags"} & {edit.key for edit in lines.edits}
    assert site_lines(present(f"{line}\n{PLAIN}"), taken=TAKEN).choices == ()


def test_what_is_unclear_hides_no_other_line():
    lines = site_lines(present(f"PrologFlags=Serial,\\\nDeferBatch\n{PLAIN}"), 4, TAKEN)
    assert [said for said in lines.refusals if "is not on one line" in said]
    assert {"Prolog", "Epilog", "JobSubmitPlugins", "GresTypes", "Gres"} <= {edit.key for edit in lines.edits}


@pytest.mark.parametrize("shards", [0, 4])
def test_a_gres_that_nobody_can_read_is_a_sentence(shards):
    lines = site_lines(present(PLAIN.replace("gpu:h200:4", "gpu:a:b:c")), shards)
    assert any("is not gpu[:TYPE][:COUNT]" in said for said in lines.refusals) == bool(shards)


OTHERS = [
    ("gpu:mi300x:8", ""),
    ("gpu:max1550:4", "Name=gpu File=/dev/nvidia[0-3]\n"),
    ("gpu:8", "AutoDetect=rsmi\n"),
    ("gpu:8", "NodeName=gpu[01-02] AutoDetect=oneapi\n"),
    ("gpu:8", "NodeName=gpu02 Name=gpu File=/dev/dri/renderD[128-135]\n"),
    ("gpu:8", "Name=gpu Type=mi250 File=/dev/dri/renderD[128-135]\n"),
]
"""Gres of a node, and a gres.conf that says its GPUs are not NVIDIA's."""


@pytest.mark.parametrize(("gres", "conf"), OTHERS)
def test_no_shards_of_another_vendors_gpus(gres, conf):
    text = PLAIN.replace("gpu:h200:4", gres)
    alone = site_lines(present(text, gres=conf), 720720)
    assert any("no GPU of /e/slurm.conf is NVIDIA's" in said for said in alone.refusals)
    assert not any("shard" in edit.add for edit in alone.edits if edit.key != "GresTypes")
    both = present(
        text.replace("PartitionName", "NodeName=n1 Gres=gpu:h100:2\nPartitionName"),
        gres=conf + "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[0-1]\n",
    )
    texts = after(both, 720720)
    assert f"Gres={gres} State=UNKNOWN" in texts[SLURM]
    assert "NodeName=n1 Gres=gpu:h100:2,shard:h100:1441440\n" in texts[SLURM]
    assert [line for line in texts[GRES].splitlines() if "shard" in line and "#" not in line] == [
        "NodeName=n1 Name=shard Type=h100 Count=1441440"
    ]
    said = "NodeName=gpu[01-02]: these GPUs are not NVIDIA's and get no shards"
    assert said in site_lines(both, 720720).advice


def test_a_default_for_nodes_of_two_vendors_gets_no_shards():
    text = "NodeName=DEFAULT Gres=gpu:2\nNodeName=a[1-2]\nNodeName=b[1-2]\n"
    lines = site_lines(present(text, gres="NodeName=b[1-2] AutoDetect=rsmi\nNodeName=a[1-2] AutoDetect=nvml\n"), 4)
    assert [edit.add for edit in lines.edits if "Name=shard" in edit.add] == ["NodeName=a[1-2] Name=shard Count=8"]
    assert not any("shard" in edit.add for edit in lines.edits if edit.add.startswith("NodeName=DEFAULT"))


def test_no_gpus_no_shards():
    site = present(PLAIN.replace("gpu:h200:4", "nic:2"))
    assert site_lines(site).refusals == ()
    (said,) = site_lines(site, 4).refusals
    assert "Gres=gpu:NUMBER" in said


def test_configless_and_patterns_are_worth_a_note():
    text = f"SlurmctldParameters=enable_configless\nProlog=/s/p.d/*\n{PLAIN}"
    said = " ".join(site_lines(present(text)).advice)
    assert "configless" in said
    assert "is a pattern" in said


# --- taking back ---

SITES = [
    PLAIN,
    f"PrologFlags=Serial # c\nProlog=/s/p\nEpilog=/s/e\n{PLAIN}# the end\n",
    f"Epilog=/s/e\r\nPrologFlags=Serial\r\n{PLAIN}",
]


@pytest.mark.parametrize("text", SITES)
@pytest.mark.parametrize("shards", [0, 720720])
def test_what_was_put_in_comes_out_to_the_byte(text, shards):
    edits = [edit for edit in site_lines(present(text), shards, TAKEN).edits if edit.file == SLURM]
    new = put_in(text, edits)
    assert new != text
    assert take_out(new, edits, SLURM) == (text, ())


def test_other_lines_that_changed_since_stay_changed():
    edits = [edit for edit in site_lines(present(SITES[1]), taken=TAKEN).edits if edit.file == SLURM]
    new = "# new\n" + put_in(SITES[1], edits).replace("CPUs=64", "CPUs=128") + "KillWait=5\n"
    text, changed = take_out(new, edits, SLURM)
    assert changed == ()
    assert text == "# new\n" + SITES[1].replace("CPUs=64", "CPUs=128") + "KillWait=5\n"


def test_our_words_go_from_a_line_that_was_changed_by_hand():
    edits = [edit for edit in site_lines(present(), taken=TAKEN).edits if edit.file == SLURM]
    by_hand = (
        put_in(PLAIN, edits).replace("PrologFlags=Alloc", "PrologFlags=Alloc,Serial").replace(f"Epilog={EPILOG}\n", "")
    )
    assert take_out(by_hand, edits, SLURM) == (f"{PLAIN}PrologFlags=Serial\n", ())


@pytest.mark.parametrize(
    ("site", "ours", "changed", "left", "forced"),
    [
        ("", "PrologFlags=Alloc", "PrologFlags=Serial,Alloc,DeferBatch", "PrologFlags=Serial,DeferBatch\n", ""),
        ("PrologFlags=Serial\n", "PrologFlags=Serial,Alloc", "PrologFlags=Alloc", "PrologFlags=Serial\n", None),
        ("PrologFlags=Serial\n", "PrologFlags=Serial,Alloc", "PrologFlags=X11,Alloc", "PrologFlags=X11\n", None),
        ("", "PrologFlags=Alloc", 'prologflags = "alloc,Serial" # c', 'prologflags = "Serial" # c\n', ""),
        ("", "PrologFlags=Alloc", "PrologFlags=Alloc # since May", "# since May\n", ""),
        ("", "PrologFlags=Alloc", "PrologFlags=Alloc KillWait=3", "KillWait=3\n", ""),
        ("", "PrologFlags=Alloc", "PrologFlags=Serial,\\\nAlloc", None, ""),
        (
            "",
            "JobSubmitPlugins=lua",
            "JobSubmitPlugins=require_timelimit,lua",
            "JobSubmitPlugins=require_timelimit\n",
            "",
        ),
        ("", f"Prolog={PROLOG}", f"Prolog=/s/p Prolog={PROLOG}", "Prolog=/s/p\n", ""),
        ("", f"Prolog={PROLOG}", f"Prolog={PROLOG}-of-ours", None, ""),
    ],
)
def test_what_goes_from_a_changed_line(site, ours, changed, left, forced):
    """Our words only, and where they cannot be told the whole line by force alone. None: nothing, or as the site's."""
    edits = [one for one in site_lines(present(f"{site}{PLAIN}"), taken=TAKEN).edits if one.add == ours]
    assert len(edits) == 1, edits
    new = put_in(f"{site}{PLAIN}", edits).replace(f"{ours}\n", f"{changed}\n")
    before = new if left is None else new.replace(f"{changed}\n", left)
    assert take_out(new, edits, SLURM) == (before, () if left is not None else (*edits,))
    assert take_out(new, edits, SLURM, force=True) == (f"{site}{PLAIN}" if forced is None else PLAIN, ())


def test_the_line_of_our_plugin_goes_whatever_it_says():
    """Its arguments, and `required`, belong to it. Another plugin's argument does not."""
    (edit,) = (one for one in site_lines(present()).edits if one.file == PLUG)
    for line in (f"required {PLUGIN}", f"optional  {PLUGIN} state=/x # c"):
        assert take_out(f"optional /x/a.so\n{line}\n", [edit], PLUG) == ("optional /x/a.so\n", ())
    other = f"optional /x/wrap.so {PLUGIN}\n"
    assert take_out(other, [edit], PLUG) == (other, (edit,))


def test_a_difference_names_file_and_lines():
    assert difference("f", "a\nb\n", "a\nb\nc\n").splitlines()[0:2] == ["--- f", "+++ f"]
    assert difference("f", "a\n", "a\n") == ""


def test_a_limit_on_gpus_is_told_with_its_number_of_shards():
    limits = (GpuLimit("qos normal", "MaxTRESPerUser", 2), *[GpuLimit("account where name=a", "GrpTRES", 1)] * 9)
    advice = site_lines(present(limits=limits), 720720).advice
    assert any(one.endswith("sacctmgr -i modify qos normal set MaxTRESPerUser=gres/shard=1441440") for one in advice)
    assert "4 more limits on gres/gpu have none on gres/shard" in advice
    assert not any("sacctmgr" in one for one in site_lines(present(limits=limits)).advice)
