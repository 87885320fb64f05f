"""`slurm-share install` on real daemons: a site before our lines, with them, and after their removal."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from bare_site import ACCEPTED, SCRIPT, files, install, put_back, reconfigure, strip
from clusters import by_release, cluster_of
from hooked import STATE, Node, completed, of_release, until

from localcluster import Cluster

pytestmark = pytest.mark.cluster
NO_SHARDS = ("--except", "gres")
"""config.toml has shards, which that action does not write."""


@pytest.fixture(scope="module", params=by_release("install-"))
def site(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster with our packages on every host and none of our lines in Slurm's files."""
    with cluster_of("install", request.param, nodes=1) as made:
        strip(made)
        reconfigure(made)
        yield made


@pytest.fixture
def before(site: Cluster) -> Iterator[dict[str, bytes]]:
    """Yield the site's files; restore them after every test."""
    was = files(site)
    yield was
    site.cancel_all()
    put_back(site, was)
    reconfigure(site)


@pytest.mark.release
def test_lines_are_shown_written_used_and_taken_back(site: Cluster, before: dict[str, bytes]) -> None:
    """A shared job, and a part of a GPU, run in between; afterwards every file is what it was."""
    shown = install(site, "--shards", code=1)
    assert "+Prolog=/opt/slurm-share/bin/slurm-share-prolog" in shown
    assert "+optional /usr/lib/slurm-share/share_gpu.so" in shown
    assert ("Exclusive=USER" if site.slurm_release == "26.05" else "ExclusiveUser=YES") in shown
    assert files(site) == before

    written = install(site, "--apply", "--shards")
    assert written.startswith(shown[: shown.index("note:")])  # what was shown is what was written
    assert "scontrol reconfigure" in written
    reconfigure(site)
    assert "no line is missing" in install(site, "--check", "--shards", *ACCEPTED)
    job = site.sbatch("alice", 'srun bash -c "echo task \\$SLURM_SHARE_RANK of \\$SLURM_SHARE_SIZE"', "--share-gpu=2")
    part = site.sbatch("alice", "srun printenv SLURM_SHARE_PER_GPU", "--share-gpu=4", "--gres=gpu:1", "-n1")
    assert site.wait(job) == "COMPLETED"
    assert set(re.findall(r"task \d of 8", site.output(job))) == {f"task {rank} of 8" for rank in range(8)}
    assert site.wait(part) == "COMPLETED"
    assert "\n4\n" in f"\n{site.output(part)}"
    assert Node(site, "n1").remains() == []

    assert "removed /etc/slurm/plugstack.conf" in install(site, "--undo")
    assert files(site) == before
    reconfigure(site)
    assert site.wait(site.sbatch("alice", "srun true", "--gres=gpu:1")) == "COMPLETED"
    assert "nothing to take back" in install(site, "--undo")


def lines_for_the_script(site: Cluster) -> list[str]:
    """Return the lines that install asks for in the site's own job_submit.lua, for its top and both functions."""
    said = install(site, "--apply", code=2)
    assert "nothing was written" in said
    lines = [line.strip() for line in said.splitlines() if re.match(r" {4}\S", line)]
    assert len(lines) == 5, said
    return lines


@pytest.mark.release
def test_hooks_and_a_submit_script_of_the_sites_own(site: Cluster, before: dict[str, bytes]) -> None:
    """Their script is theirs to change; our Prolog runs after their hooks and our Epilog before them."""
    note = '#!/bin/sh\necho "$0" >> /run/order\n'
    for which in ("prolog", "epilog"):
        folder = site.conf / f"{which}.d"
        folder.mkdir(exist_ok=True)
        for name in ("10-a", "90-b"):
            (folder / name).write_text(note + "exit 0\n")
            (folder / name).chmod(0o755)
    more = "JobSubmitPlugins=lua\nProlog=/etc/slurm/prolog.d/*\nEpilog=/etc/slurm/epilog.d/*\n"
    slurm = before["slurm.conf"].decode().replace("GresTypes=gpu\n", f"GresTypes=gpu\n{more}")
    (site.conf / "slurm.conf").write_text(slurm)
    own = """function slurm_job_submit(job, partitions, uid)
  -- here
  job.comment = "of the site"
  return slurm.SUCCESS
end
function slurm_job_modify(job, old, partitions, uid) return slurm.SUCCESS end
"""
    (site.conf / "job_submit.lua").write_text(own)
    mine = files(site)
    lines = lines_for_the_script(site)
    assert files(site) == mine
    (site.conf / "job_submit.lua").write_text(f"{lines[0]}\n" + own.replace("  -- here", "\n".join(lines[1:3])))
    mine = files(site)

    assert "--with alloc" in install(site, "--apply")  # theirs to choose
    assert "PrologFlags" not in (site.conf / "slurm.conf").read_text()
    install(site, "--apply", "--with", "alloc")
    assert "PrologFlags=Alloc\n" in (site.conf / "slurm.conf").read_text()
    reconfigure(site)
    job = site.sbatch("alice", "srun true", "--share-gpu=2")
    assert site.wait(job) == "COMPLETED"
    assert "Comment=of the site" in site.job(job)
    assert "OverSubscribe=NO" in site.job(job)
    ran = Node(site, "n1").run("cat", "/run/order").stdout.split()
    assert ran == [f"/etc/slurm/{which}.d/{name}" for which in ("prolog", "epilog") for name in ("90-b", "10-a")]
    install(site, "--undo")
    assert files(site) == mine


def test_what_slurm_would_not_take_is_never_written(site: Cluster, before: dict[str, bytes]) -> None:
    """The parser of the running release is asked first; what it cannot know, a reconfigure refuses."""
    (site.conf / "slurm.conf").write_bytes(before["slurm.conf"] + b"NoSuchKey=1\n")
    mine = files(site)
    assert "unrecognized key: NoSuchKey" in install(site, "--apply", code=2)
    assert files(site) == mine
    (site.conf / "slurm.conf").write_bytes(before["slurm.conf"] + b"JobSubmitPlugins=no_such\n")
    assert site.exec("ctl", ["scontrol", "reconfigure"]).returncode != 0
    assert "no_such" not in site.exec("ctl", ["scontrol", "show", "config"], check=True).stdout
    assert site.wait(site.sbatch("alice", "srun true")) == "COMPLETED"


@pytest.mark.release
@pytest.mark.weekly
def test_what_only_the_daemons_find_wrong_is_not_written(site: Cluster, before: dict[str, bytes]) -> None:
    """slurmd is asked about gres.conf, srun about plugstack.conf and the plugin that it names."""
    (site.conf / "gres.conf").write_bytes(before["gres.conf"] + b"NodeName=n1 Nonsense=1\n")
    assert "unrecognized key: Nonsense" in install(site, "--apply", "--shards")
    install(site, "--undo")
    counted = re.sub(rb"File=\S+", b"Count=4", before["gres.conf"])  # right by itself; shards need the files
    (site.conf / "gres.conf").write_bytes(counted)
    mine = files(site)
    assert 'lacks "File" specification' in install(site, "--apply", "--shards", code=2)
    assert files(site) == mine
    (site.conf / "gres.conf").write_bytes(before["gres.conf"])
    mine = files(site)
    plugin = site.root("ctl") / "usr/lib/slurm-share/share_gpu.so"
    good = plugin.read_bytes()
    try:
        plugin.write_bytes(of_release(good, site.slurm_version, "99.11.0"))
        said = install(site, "--apply", code=2)
    finally:
        plugin.write_bytes(good)
    assert "nothing was written: Slurm would reject the new lines" in said
    assert "ncompatible Slurm plugin" in said
    assert files(site) == mine
    assert not list((site.root("ctl") / "var/log/slurm").glob("slurmd.log"))


@pytest.mark.parametrize(
    ("name", "line"), [("gres.conf", "NodeName=n1 Nonsense=1\n"), ("plugstack.conf", "required /nowhere/plugin.so\n")]
)
@pytest.mark.weekly
def test_a_fault_beside_our_lines_stays_without_effect_and_they_come_out(
    site: Cluster, before: dict[str, bytes], name: str, line: str
) -> None:
    """A site writes a fault while our lines are in force: a reconfigure loses no node, and --undo removes ours."""
    install(site, "--apply", "--shards")
    reconfigure(site)
    with (site.conf / name).open("a") as file:
        file.write(line)
    site.exec("ctl", ["scontrol", "reconfigure"])
    if name == "gres.conf":
        log = site.root("n1") / "var/log/slurm/slurmd.log"
        until(lambda: "Nonsense" in log.read_text(errors="replace"), "slurmd's word about it")
    else:
        assert "/etc/slurm/plugstack.conf:2: Failed to load" in site.exec("login", ["srun", "true"]).stderr
    until(lambda: site.status().nodes == {"n1": "idle"}, "a node in service")
    install(site, "--undo")
    left = before.get(name, b"").decode() + line
    assert (site.conf / name).read_text() == left
    (site.conf / name).write_text(left.replace(line, ""))
    reconfigure(site)
    assert site.wait(site.sbatch("alice", "srun true", "--gres=gpu:1")) == "COMPLETED"


def test_an_undo_under_a_running_share_loses_nothing(site: Cluster, before: dict[str, bytes]) -> None:
    """The job ends as it would have; what no Epilog took back, doctor does."""
    install(site, "--apply", "--shards")
    reconfigure(site)
    node, home = Node(site, "n1"), site.home / "alice"
    wait = "srun bash -c 'touch here.$SLURM_PROCID; until [ -e gone-on ]; do sleep 0.1; done'"
    later = "srun bash -c 'echo later $SLURM_PROCID ${SLURM_SHARE_SLOT:-none}'"
    job = site.sbatch("alice", f"{wait} && {later}", "--share-gpu=2")
    until(lambda: len(list(home.glob("here.*"))) == 8, "the tasks")
    daemons = node.mps()
    running = f"shared jobs that run now: 1 ({job} of alice)"
    assert running in install(site, "--check", "--shards", *ACCEPTED)
    said = install(site, "--undo")
    assert running in said
    assert "slurm-share doctor --fix" in said
    assert files(site) == before
    reconfigure(site)
    assert node.mps() == daemons
    (home / "gone-on").touch()
    assert site.wait(job) == "COMPLETED"
    # as it is said: a later srun has no share
    assert sorted(re.findall(r"later (\d) none", site.output(job))) == list("01234567")
    assert site.wait(site.sbatch("bob", "srun true", "--gres=gpu:1")) == "COMPLETED"
    assert site.status().nodes == {"n1": "idle"}
    assert node.mps() == daemons
    node.run("sed", "-i", 's/"since":[0-9.]*/"since":1.0/g', f"{STATE}/ledger")  # doctor leaves a young job alone
    node.run("slurm-share", "doctor", "--fix")
    assert node.remains() == []


def test_a_kill_leaves_a_site_that_the_next_run_sets_right(site: Cluster, before: dict[str, bytes]) -> None:
    """tests/unit/install/test_install_files.py kills it at every single write."""
    for delay in ("0.2", "0.4"):
        site.exec("ctl", ["timeout", "-s", "KILL", delay, "slurm-share", "install", "--apply", "--shards"])
        install(site, "--undo")
        assert files(site) == before


@pytest.mark.weekly
def test_only_our_words_are_taken_from_lines_that_were_changed(site: Cluster, before: dict[str, bytes]) -> None:
    """The site's additions stay; a value that may be the site's is removed by --force only."""
    install(site, "--apply", "--shards", "--with", "alloc")
    slurm = site.conf / "slurm.conf"
    epilog = "Epilog=/opt/slurm-share/bin/slurm-share-epilog"
    text = slurm.read_text().replace("PrologFlags=Alloc", "PrologFlags=Alloc,DeferBatch")
    text = text.replace("JobSubmitPlugins=lua", "JobSubmitPlugins=lua,all_partitions # since May")
    mine = text.replace(epilog, f"{epilog}-of-ours") + "KillWait=3\n"
    slurm.write_text(mine)
    said = install(site, "--undo", code=2)
    assert f"-{epilog}-of-ours" in said
    assert f"+{epilog}\n" in said
    assert "--undo --force" in said
    assert slurm.read_text() == mine
    slurm.write_text(mine.replace("-of-ours", ""))
    install(site, "--undo")
    words = "JobSubmitPlugins=all_partitions # since May\nPrologFlags=DeferBatch\nKillWait=3\n"
    assert slurm.read_text() == before["slurm.conf"].decode() + words
    assert files(site).keys() == before.keys()
    reconfigure(site)
    restart(site)
    assert site.wait(site.sbatch("alice", "srun true", "--gres=gpu:1")) == "COMPLETED"


@pytest.mark.weekly
def test_an_undo_leaves_no_file_with_which_slurm_does_not_start(site: Cluster, before: dict[str, bytes]) -> None:
    """A function in our script and other shards, both of the site's, stay and are named."""
    install(site, "--apply", "--shards")
    slurm, script = site.conf / "slurm.conf", site.conf / "job_submit.lua"
    shards = re.search(r"shard:simulated:\d+", slurm.read_text())
    assert shards is not None
    slurm.write_text(slurm.read_text().replace(shards[0], "shard:simulated:8"))
    gres = site.conf / "gres.conf"
    gres.write_text(re.sub(r"(Name=shard .*Count=)\d+", r"\g<1>8", gres.read_text()))
    more = "local of_ours = slurm_job_submit\nfunction slurm_job_submit(j, p, u) return of_ours(j, p, u) end\n"
    script.write_text(script.read_text() + more)
    mine = script.read_text()
    reconfigure(site)  # slurmd takes its shards from the new files
    said = install(site, "--undo")
    assert script.read_text() == mine
    assert "JobSubmitPlugins keeps lua" in said
    assert "GresTypes keeps shard" in said
    assert "slurm-share-prolog" not in slurm.read_text()
    reconfigure(site)
    restart(site)
    assert site.wait(site.sbatch("alice", "true")) == "COMPLETED"


@pytest.mark.weekly
def test_a_sites_script_with_our_lines_works_on_when_our_package_is_gone(
    site: Cluster, before: dict[str, bytes]
) -> None:
    """Lines of earlier releases are named at the removal, with what to write."""
    own = "function slurm_job_submit(job, partitions, uid)\n  -- here\n  return slurm.SUCCESS\nend\n"
    own += "function slurm_job_modify(job, old, partitions, uid)\n  -- there\n  return slurm.SUCCESS\nend\n"
    script = site.conf / "job_submit.lua"
    script.write_text(own)
    slurm = site.conf / "slurm.conf"
    slurm.write_text(slurm.read_text() + "JobSubmitPlugins=lua\n")
    lines = lines_for_the_script(site)
    safe = f"{lines[0]}\n" + own.replace("-- here", "\n".join(lines[1:3])).replace("-- there", "\n".join(lines[3:]))
    script.write_text(safe)
    install(site, "--apply")
    reconfigure(site)
    job = site.sbatch("alice", "srun true", "--share-gpu=2")
    assert site.wait(job) == "COMPLETED"
    assert "OverSubscribe=NO" in site.job(job)
    assert "works without it; these lines may stay" in install(site, "--undo")
    script.write_text(safe.replace(lines[0], 'local share = dofile("/usr/lib/slurm-share/job_submit.lua")'))
    install(site, "--apply")
    said = install(site, "--undo")
    assert "before you remove slurm-share-spank take out" in said
    assert '    1: local share = dofile("' in said
    assert lines[0] in said
    script.write_text(safe)
    reconfigure(site)
    ours = "/usr/lib/slurm-share/job_submit.lua"
    site.exec("ctl", ["mv", ours, f"{ours}.away"], check=True)
    try:
        restart(site)
        assert site.wait(site.sbatch("alice", "true")) == "COMPLETED"
    finally:
        site.exec("ctl", ["mv", f"{ours}.away", ours], check=True)


BRIGHT = """\
# This section of this file was automatically generated by cmd. Do not edit manually!
# BEGIN AUTOGENERATED SECTION -- DO NOT REMOVE
Prolog=/etc/slurm/site-prolog
Epilog=/etc/slurm/site-epilog
PrologFlags=Alloc
# END AUTOGENERATED SECTION   -- DO NOT REMOVE
"""


@pytest.mark.weekly
def test_a_section_that_bright_writes_stays_as_it_is(site: Cluster, before: dict[str, bytes]) -> None:
    """Our hooks run, from lines around it. What belongs into it is said with its place and waits for the word."""
    for which in ("prolog", "epilog"):
        (site.conf / f"site-{which}").write_text("#!/bin/sh\nexit 0\n")
        (site.conf / f"site-{which}").chmod(0o755)
    slurm = site.conf / "slurm.conf"
    slurm.write_text(before["slurm.conf"].decode() + BRIGHT)
    mine = files(site)
    install(site, "--apply")
    assert BRIGHT.split("\n", 1)[1] in slurm.read_text()
    reconfigure(site)
    output = completed(site, "srun printenv SLURM_SHARE_SLOT", "--share-gpu=2")
    assert sorted(output.split()[-8:]) == list("01234567")
    assert Node(site, "n1").remains() == []
    install(site, "--undo")
    assert files(site) == mine
    slurm.write_text(slurm.read_text().replace("PrologFlags=Alloc", "PrologFlags=Serial"))
    mine = files(site)
    said = install(site, "--apply", "--with", "alloc", code=2)
    assert "in the place of PrologFlags=Serial:  PrologFlags=Serial,Alloc" in said
    assert "slurm-share install --apply --with alloc --with managed" in said
    assert files(site) == mine
    install(site, "--apply", "--with", "alloc", "--with", "managed")
    assert "PrologFlags=Serial,Alloc\n# END AUTO" in slurm.read_text()
    install(site, "--undo")
    assert files(site) == mine


@pytest.mark.weekly
def test_another_controller_has_the_package_and_the_same_files(site: Cluster, before: dict[str, bytes]) -> None:
    """It is asked through the site's remote command. Without job_submit.lua there, --apply writes nothing."""
    slurm, lua = site.conf / "slurm.conf", "/usr/lib/slurm-share/job_submit.lua"
    slurm.write_text(slurm.read_text().replace("SlurmctldHost=ctl\n", "SlurmctldHost=ctl\nSlurmctldHost=n1(n1)\n"))
    mine = files(site)
    settings = site.exec("ctl", ["cat", "/etc/slurm-share/config.toml"], check=True).stdout
    configure = ["bash", "-c", "cat >/etc/slurm-share/config.toml"]
    remote = 'remote_command = ["srun", "--quiet", "--immediate=5", "-N1", "-n1", "-w", "NODE"]\n'
    apart = "mkdir /run/apart && cp -a /etc/slurm/. /run/apart && echo '# old' >>/run/apart/slurm.conf"
    assert "did not answer, and were not checked: n1" in install(site, "--check", *NO_SHARDS, code=1)
    site.exec("ctl", configure, input=f"{remote}{settings}", check=True)
    site.exec("n1", ["bash", "-ec", f"mv {lua} {lua}.away || true"], check=True)
    try:
        assert f"n1: a controller that lacks {lua}" in install(site, "--apply", code=2)
        assert files(site) == mine
        site.exec("n1", ["install", "-D", "-m644", "/dev/stdin", lua], input=SCRIPT.read_text(), check=True)
        site.exec("n1", ["bash", "-ec", f"{apart} && mount --bind /run/apart /etc/slurm"], check=True)
        assert "on n1 /etc/slurm/slurm.conf differs from this host's" in install(site, "--check", *NO_SHARDS, code=1)
        site.exec("n1", ["bash", "-ec", "umount /etc/slurm; rm -r /run/apart"], check=True)
        said = install(site, "--apply")
        assert "differs from this host's" not in said
        assert "other controllers: n1. Each needs the package slurm-share-spank" in said
        install(site, "--undo")
    finally:
        site.exec("ctl", configure, input=settings, check=True)
        site.exec(
            "n1", ["bash", "-c", f"[ ! -d /run/apart ] || umount /etc/slurm; rm -rf /run/apart; mv {lua}.away {lua}"]
        )


@pytest.mark.parametrize("folder", ["/cm/shared/apps/slurm/current", "/sw/slurm"])
@pytest.mark.weekly
def test_a_slurm_that_is_elsewhere_is_found(site: Cluster, before: dict[str, bytes], folder: str) -> None:
    """By itself where Bright has it, else by a line in /etc/default/slurm-share. PATH has none of its programs."""
    programs = "scontrol srun squeue sinfo"
    there = f"mkdir -p {folder}/bin; for name in {programs}; do mv /usr/bin/$name {folder}/bin/; done"
    back = f"mv {folder}/bin/* /usr/bin/; rm -rf {folder} /etc/default/slurm-share"
    site.exec("ctl", ["bash", "-ec", there], check=True)
    try:
        if folder == "/sw/slurm":
            assert "there is no scontrol on this host" in install(site, "--apply")
            install(site, "--undo")
            line = f"echo 'SLURM_SHARE_SLURM={folder}' >/etc/default/slurm-share"
            site.exec("ctl", ["bash", "-ec", line], check=True)
        said = install(site, "--apply")
        assert "on this host to try" not in said
        assert "did not answer" not in said
        assert "no shared job runs" in install(site, "--undo")
    finally:
        site.exec("ctl", ["bash", "-ec", back], check=True)


def restart(cluster: Cluster) -> None:
    """Stop slurmctld and start it with the files as they are."""
    # by its number, too: pgrep can miss a process
    script = """pid=$(cat /run/slurm/slurmctld.pid); kill $pid
        while kill -0 $pid 2>/dev/null || pgrep -x slurmctld >/dev/null; do sleep 0.05; done; slurmctld"""
    cluster.exec("ctl", ["bash", "-ec", script], check=True)
    up = ["bash", "-c", "scontrol ping | grep -q 'is UP'"]

    def why() -> str:
        return cluster.exec("ctl", ["bash", "-c", "pgrep -a slurmctld; tail -n30 /var/log/slurm/slurmctld.log"]).stdout

    until(lambda: cluster.exec("ctl", up).returncode == 0, "slurmctld's answer", why)
    until(lambda: set(cluster.status().nodes.values()) <= {"idle", "mixed"}, "a node in service", why)
