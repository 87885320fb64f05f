"""Faults of real sites: each is planted on a cluster, doctor names it and nothing else, and finds nothing after its
remedy.

slurm_share/doctor/checks/faults.py lists what must be named, and how.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from clusters import name_for
from hooked import LOG, STATE, Node, of_release, until

from localcluster import Cluster
from slurm_share.doctor.checks import every
from slurm_share.doctor.checks.faults import FAULTS, Fault
from slurm_share.doctor.facts.programs import read_release

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("site-faults")]

OBJECT = "/usr/lib/slurm-share/share_gpu.so"
BIN = "/opt/slurm-share/bin"
INSTALL_PAGE = Path(__file__).resolve().parents[2] / "packaging/docs/install.md"
HOSTS = ("ctl", "login", "n1")
WELL = {"idle", "mixed", "allocated", "completing"}

OF_CONFIGURATION = {check.name for check in every.ALL if check.needs == "configuration"}
Said = dict[str, list[dict[str, str]]]
"""FAIL and WARN by check."""
Planter = Generator[None, list[dict[str, str]], None]
"""A test that plants the fault, gets the findings, and applies the remedy."""


WITHOUT_MODULES = ("--except", "modules")
"""Without the check that takes longer than all others: it imports every module."""


class Site:
    """A cluster whose files are restored, and the output of its doctors."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.n1 = Node(cluster, "n1")
        self.conf, self.site = cluster.conf, cluster.site
        self.env: dict[str, str] = {}
        """Variables that the caller of doctor has set besides."""
        self.words: tuple[str, ...] = WITHOUT_MODULES
        self.code = 0
        self.stderr = ""

    def sh(self, host: str, script: str) -> str:
        """Run a shell script as root; it must end with 0."""
        return self.cluster.exec(host, ["bash", "-ec", script], check=True).stdout

    def root(self, host: str, path: str) -> Path:
        return self.cluster.root(host) / path.lstrip("/")

    def doctor(self, host: str, *words: str) -> Said:
        """Return what doctor finds wrong there; keep `code` and `stderr`."""
        argv = ["/usr/local/bin/slurm-share", "doctor", "--json", *self.words, *words]
        done = self.cluster.exec(host, argv, env=self.env)
        assert "Traceback" not in done.stderr, done.stderr
        self.code, self.stderr = done.returncode, done.stderr
        found: Said = {}
        for one in json.loads(done.stdout)["findings"] if done.stdout else ():
            if one["outcome"] in ("FAIL", "WARN"):
                found.setdefault(one["check"], []).append(one)
        return found

    def doctors(self, hosts: tuple[str, ...]) -> dict[str, Said]:
        """Return what doctor finds wrong on each host. On the controller `slurm-share install --check` says the
        same of the configuration."""
        with ThreadPoolExecutor() as pool:
            installed = pool.submit(self.installed) if "ctl" in hosts else None
            found = dict(zip(hosts, pool.map(self.doctor, hosts), strict=True))
            if installed is not None:
                lacks_lines, said = installed.result()
                ours = {name: one for name, one in found["ctl"].items() if name in OF_CONFIGURATION}
                if lacks_lines:  # it judges the files with these lines, and doctor what the controller runs with
                    both = said.keys() & ours.keys()
                    said, ours = ({name: of[name] for name in both} for of in (said, ours))
                assert said == ours
        return found

    def installed(self) -> tuple[bool, Said]:
        """Return whether lines are missing, and what `install --check` finds wrong with the configuration."""
        argv = ["/usr/local/bin/slurm-share", "install", "--check", "--json"]
        done = self.cluster.exec("ctl", argv, env=self.env)
        shown = json.loads(done.stdout)
        assert "Traceback" not in done.stderr, done.stderr
        found: Said = {}
        for one in shown["findings"]:
            found.setdefault(one["check"], []).append(one)
        outcomes = {one["outcome"] for one in shown["findings"]}
        worst = 2 if "FAIL" in outcomes or shown["error"] else 1 if outcomes or shown["files"] else 0
        assert done.returncode == worst, shown
        return bool(shown["files"]), found

    def write(self, file: Path, text: str, mode: int = 0o644) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(mode)

    def change(self, file: Path, old: str, new: str) -> None:
        text = file.read_text()
        assert old in text, (file, old)
        file.write_text(text.replace(old, new))

    def setting(self, line: str) -> None:
        """Set a line of config.toml; it replaces the one with its key."""
        file = self.site / "config.toml"
        key = line.split(" =")[0]
        kept = [one for one in file.read_text().splitlines() if not one.startswith(f"{key} =")]
        file.write_text("\n".join([line, *kept]) + "\n")
        self.cluster.exec("ctl", ["slurm-share", "config", "write-lua"])  # a planted file may be wrong

    @contextmanager
    def slurm_conf(self, *lines: str, without: str | tuple[str, ...] = ()) -> Iterator[None]:
        """Add lines to slurm.conf, and remove those with these beginnings, while the block runs."""
        file = self.conf / "slurm.conf"
        before = file.read_text()
        kept = [line for line in before.splitlines() if not line.startswith(without)]
        file.write_text("\n".join([*kept, *lines, ""]))
        self.reconfigure()
        try:
            yield
        finally:
            file.write_text(before)
            self.reconfigure()

    def reconfigure(self) -> None:
        self.cluster.exec("ctl", ["scontrol", "reconfigure"], check=True)
        self.settle()

    def settle(self) -> None:
        until(lambda: set(self.cluster.status().nodes.values()) <= WELL, "nodes in service")


@pytest.fixture(scope="module")
def site(can_make_clusters: None) -> Iterator[Site]:
    with Cluster.up(name_for("faults"), agents=True, nodes=1, slurm_conf_extra="PrologFlags=Alloc") as made:
        yield Site(made)


@pytest.fixture(scope="module")
def healthy(site: Site) -> dict[str, Said]:
    """Return the findings that this cluster causes on purpose: it has no cgroups."""
    said = site.doctors(HOSTS)
    assert {host: set(one) for host, one in said.items()} == {
        "ctl": {"process-tracking", "confined-devices"}, "login": set(), "n1": {"daemon-limits"},
    }  # fmt: skip
    return said


PLANTED: dict[str, tuple[tuple[str, ...], Callable[[Site], Planter]]] = {}


def planted(name: str, *hosts: str) -> Callable[[Callable[[Site], Planter]], Callable[[Site], Planter]]:
    """Plant the fault of that name. Yield the hosts on which doctor runs: the first must name it, the others must
    not."""

    def keep(plant: Callable[[Site], Planter]) -> Callable[[Site], Planter]:
        PLANTED[name] = hosts, plant
        return plant

    return keep


def first_of(fix: str) -> str:
    return re.split(r" \(|, |: ", fix)[0]


def within(name: str, *hosts: str, block: Callable[[Site], AbstractContextManager[None]]) -> None:
    """Plant a fault that is there while the block runs; its end is the remedy."""

    def both(site: Site) -> Planter:
        with block(site):
            yield

    planted(name, *hosts)(both)


def by_script(name: str, *hosts: str, plant: str, remedy: str | Callable[[str], str] = str, always: str = "") -> None:
    """Plant a fault with a script on the first host. `remedy`: a script that ends it, or what makes one of the named
    fix. `always`: runs also after a failure."""

    def both(site: Site) -> Planter:
        site.sh(hosts[0], plant)
        try:
            found = yield
            site.sh(hosts[0], remedy if isinstance(remedy, str) else remedy(found[0]["fix"]))
        finally:
            site.sh(hosts[0], always)

    planted(name, *hosts)(both)


def stop_slurmd(site: Site) -> None:
    site.sh("n1", "kill $(cat /run/slurmd.pid); while pgrep -x slurmd >/dev/null; do sleep 0.02; done")


def start_slurmd(site: Site, how: str = "slurmd") -> None:
    site.sh("n1", f"{how} </dev/null >/dev/null 2>&1")
    site.settle()


def narrow(site: Site, host: str, fix: str) -> None:
    path = shlex.quote(fix.rpartition(" ")[2])
    site.sh(host, f"chown root {path}; chmod go-w {path}")


# --- plugstack.conf and the plugin -----------------------------------------------------------------------------------


@planted("required-line", "login", "n1", "ctl")
def required_line(site: Site) -> Planter:
    with (site.conf / "plugstack.conf").open("a") as file:
        file.write(f"required {OBJECT}\n")
    (found,) = yield
    line = re.search(r"`(.*)`", found["what"])
    assert line
    site.change(site.conf / "plugstack.conf", line[1] + "\n", "")


@contextmanager
def sent_by_the_controller(site: Site, without: str | tuple[str, ...] = ()) -> Iterator[None]:
    """Leave the node only what the controller sends, and no file of Slurm's."""
    with site.slurm_conf("SlurmctldParameters=enable_configless", without=without):
        stop_slurmd(site)
        site.sh("n1", "mount -t tmpfs -o mode=755 none /etc/slurm")
        try:
            start_slurmd(site, "slurmd --conf-server ctl:6817")
            yield
        finally:
            stop_slurmd(site)
            site.sh("n1", "umount /etc/slurm")
            start_slurmd(site)


@planted("path-not-sent", "n1", "login")
def path_not_sent(site: Site) -> Planter:
    with sent_by_the_controller(site):
        yield
        share = ("alice", "srun printenv SLURM_SHARE_SLOT", "--share-gpu=2")
        assert site.cluster.wait(site.cluster.sbatch(*share)) != "COMPLETED"  # it is as doctor says
        site.change(site.conf / "slurm.conf", "PlugStackConfig=", "#PlugStackConfig=")
        site.reconfigure()
        assert set(site.doctor("n1")) & {"plugstack", "plugin-used"} == {"plugin-used"}
        assert site.cluster.wait(site.cluster.sbatch(*share)) == "COMPLETED"
        until(lambda: "plugin-used" not in site.doctor("n1"), "an Epilog of a job with the plugin")


by_script("carriage-return", "login", "n1", plant="sed -i 's/$/\\r/' /etc/slurm/plugstack.conf", remedy=first_of)


@contextmanager
def other_object(site: Site, old: bytes, new: bytes) -> Iterator[None]:
    """Replace the plugin's object by one with other bytes, in a new file, as a package does."""
    site.sh("n1", f"cp -p {OBJECT} /root/object.so")
    data = site.root("n1", OBJECT).read_bytes()
    assert old in data
    site.root("n1", OBJECT + ".new").write_bytes(data.replace(old, new))
    site.sh("n1", f"chmod 644 {OBJECT}.new; mv {OBJECT}.new {OBJECT}")
    try:
        yield
    finally:
        site.sh("n1", f"mv /root/object.so {OBJECT}")


@planted("undefined-symbol", "n1")
def undefined_symbol(site: Site) -> Planter:
    with other_object(site, b"\0spank_get_item\0", b"\0spank_get_itex\0"):
        found = yield
        said = " ".join(one["what"] for one in found)
        assert all(word in said for word in ("srun", "sbatch", "salloc", "slurmd", "undefined symbol: spank_get_itex"))


@planted("later-libc", "n1", "login")
def later_libc(site: Site) -> Planter:
    with other_object(site, b"GLIBC_2.33", b"GLIBC_2.99"):
        (found,) = yield
        assert "version `GLIBC_2.99' not found" in found["what"]


by_script("missing-object", "n1", plant=f"mv {OBJECT} /root/object.so", remedy=f"mv /root/object.so {OBJECT}")


@planted("old-object", "n1")
def old_object(site: Site) -> Planter:
    folder = Path(OBJECT).parent
    release = ".".join(site.cluster.slurm_version.split(".")[:2])
    old = site.root("n1", f"{folder}/20.02/share_gpu.so")
    old.parent.mkdir()
    old.write_bytes(of_release(site.root("n1", OBJECT).read_bytes(), site.cluster.slurm_version, "20.02.7"))
    assert read_release(old) == "20.02"
    site.sh("n1", f"cd {folder}; mkdir {release}; mv share_gpu.so {release}; ln -s 20.02/share_gpu.so share_gpu.so")
    (found,) = yield
    site.sh("n1", first_of(found["fix"]) + " >/dev/null || true")
    assert site.sh("n1", f"readlink {OBJECT}").strip() == f"{release}/share_gpu.so"
    assert "plugin-release" not in site.doctor("n1")
    site.sh("n1", f"cd {folder}; mv {release}/share_gpu.so share_gpu.so; rm -r 20.02 {release}")


# --- slurm.conf ------------------------------------------------------------------------------------------------------


OURS = ("PrologFlags", "Prolog", "Epilog", "JobSubmitPlugins", "PlugStackConfig")


@planted("reverted-conf", "ctl", "login", "n1")
def reverted_conf(site: Site) -> Planter:
    file = site.conf / "slurm.conf"
    kept = [line for line in file.read_text().splitlines() if line.split("=")[0] not in OURS]
    file.write_text("\n".join(kept) + "\n")
    (found,) = yield
    assert all(word in found["what"] for word in ("prolog,", "epilog", "jobsubmitplugins")), found
    site.sh("ctl", "slurm-share install --apply >/dev/null")
    site.reconfigure()


@planted("unread-conf", "ctl", "login", "n1")
def unread_conf(site: Site) -> Planter:
    file = site.conf / "slurm.conf"
    was = file.read_text()
    file.write_text(was + "NoSuchKey=1\n")
    yield
    file.write_text(was)


@planted("empty-folder", "n1", "ctl")
def empty_folder(site: Site) -> Planter:
    (site.conf / "prolog.d").mkdir()
    with site.slurm_conf("Prolog=/etc/slurm/prolog.d/*"):
        yield


@planted("wrapper-without-ours", "n1", "ctl")
def wrapper_without_ours(site: Site) -> Planter:
    text = f"#!/bin/sh\n# {BIN}/slurm-share-prolog  (off for now)\nexit 0\n"
    site.write(site.conf / "site-prolog", text, 0o755)
    with site.slurm_conf("Prolog=/etc/slurm/site-prolog", without="Prolog="):
        yield
        site.change(site.conf / "site-prolog", "exit 0", f"exec {BIN}/slurm-share-prolog")
        assert "prolog" not in site.doctor("n1")


within("no-epilog", "n1", "ctl", block=lambda site: site.slurm_conf(without="Epilog="))


@planted("hooks-twice", "n1", "ctl")
def hooks_twice(site: Site) -> Planter:
    (site.conf / "prolog.d").mkdir()
    (site.conf / "prolog.d/zz-slurm-share").symlink_to(f"{BIN}/slurm-share-prolog")
    with site.slurm_conf("Prolog=/etc/slurm/prolog.d/*"):
        yield


@planted("epilog-second", "n1", "ctl")
def epilog_second(site: Site) -> Planter:
    site.write(site.conf / "epilog.d/zzz-site", "#!/bin/sh\nexit 0\n", 0o755)
    link = site.conf / "epilog.d/50-slurm-share"
    link.symlink_to(f"{BIN}/slurm-share-epilog")
    (site.conf / "epilog.d").chmod(0o755)
    with site.slurm_conf("Epilog=/etc/slurm/epilog.d/*", without="Epilog="):
        yield
        (site.conf / "epilog.d/zzz-site").rename(site.conf / "epilog.d/50-site")
        link.rename(site.conf / "epilog.d/zz-slurm-share")
        assert "hook-order" not in site.doctor("n1")


FLAGS = "PrologFlags=Alloc,RunInJob"
within("run-in-job", "ctl", "n1", block=lambda site: site.slurm_conf(FLAGS, without="PrologFlags="))


within("no-alloc", "ctl", "n1", block=lambda site: site.slurm_conf(without="PrologFlags="))


@planted("short-timeout", "ctl", "n1")
def short_timeout(site: Site) -> Planter:
    with site.slurm_conf("PrologEpilogTimeout=5"):
        (_, found) = yield
        needs = re.search(r"ours may take (\d+) s", found["what"])
        assert needs
        with site.slurm_conf(f"PrologEpilogTimeout={needs[1]}", without="PrologEpilogTimeout="):
            assert "hook-time" not in site.doctor("ctl")


@planted("task-prolog", "n1")
def task_prolog(site: Site) -> Planter:
    text = "#!/bin/sh\necho export CUDA_VISIBLE_DEVICES=0\n"
    site.write(site.conf / "task-prolog", text, 0o755)
    with site.slurm_conf("TaskProlog=/etc/slurm/task-prolog"):
        yield
        shown = "srun -n2 bash -c 'echo task $CUDA_VISIBLE_DEVICES'"
        jobs = [site.cluster.sbatch("alice", shown, "--share-gpu=2"), site.cluster.sbatch("bob", shown, "-n2")]
        assert [site.cluster.wait(job) for job in jobs] == ["FAILED", "COMPLETED"]
        refused, ordinary = map(site.cluster.output, jobs)
        assert "slurm-share: job" in refused, refused
        assert "TaskProlog in slurm.conf is /etc/slurm/task-prolog, which sets CUDA_VISIBLE_DEVICES" in refused
        assert "\ntask " not in refused
        assert ordinary == "task 0\n" * 2
        site.change(site.conf / "task-prolog", "echo", '[ -n "$SLURM_SHARE_SLOT" ] || echo')
        assert "task-prolog" not in site.doctor("n1")
        assert site.cluster.wait(job := site.cluster.sbatch("alice", shown, "--share-gpu=2")) == "COMPLETED"
        assert site.cluster.output(job).count("task GPU-") == 2


def site_script(name: str, line: str, text: str) -> None:
    """Plant a script of the site, beside our hooks."""

    @contextmanager
    def block(site: Site) -> Iterator[None]:
        if text:
            site.write(site.conf / "site-script", f"#!/bin/bash\n{text}\n", 0o755)
        with site.slurm_conf(f"{line}=/etc/slurm/site-script"):
            yield

    within(name, *(("n1",) if line.startswith("Task") and not text else ("n1", "ctl")), block=block)


site_script("broken-epilog", "Epilog", "if true; then date")
site_script("failing-prolog", "Prolog", "mkdir -p /run/site\nexit 1  # until the disk is mended")
site_script("killing-epilog", "Epilog", "clean() { pkill -f nvidia-cuda-mps; }\nclean")
site_script("quitting-task-epilog", "TaskEpilog", "echo quit | nvidia-cuda-mps-control")
site_script("mode-prolog", "Prolog", "nvidia-smi -c EXCLUSIVE_PROCESS")
site_script("lost-task-prolog", "TaskProlog", "")


@planted("private-shm", "ctl", "n1")
def private_shm(site: Site) -> Planter:
    with site.slurm_conf("NamespaceType=namespace/tmpfs", "PrologFlags=Contain", without="PrologFlags="):
        yield
        site.write(site.conf / "job_container.conf", "BasePath=/var/tmp/jobs\nDirs=/tmp\n")
        assert "private-shm" not in site.doctor("ctl")
        (site.conf / "job_container.conf").unlink()


@planted("private-run", "ctl", "n1")
def private_run(site: Site) -> Planter:
    with site.slurm_conf("NamespaceType=namespace/tmpfs", "PrologFlags=Contain", without="PrologFlags="):
        site.write(site.conf / "job_container.conf", "BasePath=/var/tmp/jobs\nDirs=/tmp,/run/slurm-share\n")
        yield
        (site.conf / "job_container.conf").unlink()


@planted("oversubscribe-force", "ctl", "n1")
def oversubscribe_force(site: Site) -> Planter:
    with site.slurm_conf("PartitionName=packed Nodes=n1 OverSubscribe=FORCE:2"):
        (found,) = yield
        table = re.search(r'`\[(.*)\] (mode = "off")`', found["fix"])
        assert table
        site.cluster.write_config((site.site / "config.toml").read_text() + f"[{table[1]}]\n{table[2]}\n")
        assert "exclusive" not in site.doctor("ctl")


@planted("writable-conf", "ctl", "login", "n1")
def writable_conf(site: Site) -> Planter:
    site.sh("ctl", "chmod 664 /etc/slurm/slurm.conf")
    (found,) = yield
    narrow(site, "ctl", f"{first_of(found['fix']).split(' what')[0]} {found['what'].split()[0]}")


# --- job_submit.lua --------------------------------------------------------------------------------------------------


@planted("torn-lua", "ctl")
def torn_lua(site: Site) -> Planter:
    file = site.conf / "job_submit.lua"
    whole, _, _ = file.read_text().partition("function M.submit(")
    file.write_text(f"{whole}function M.submit(")
    yield


@planted("lua-of-the-site", "ctl")
def lua_of_the_site(site: Site) -> Planter:
    file = site.conf / "job_submit.lua"
    ours = file.read_text()
    text = "function slurm_job_submit(job, partitions, uid) return slurm.SUCCESS end\n"
    file.write_text(text + "function slurm_job_modify(job, old, partitions, uid) return slurm.SUCCESS end\n")
    yield
    site.sh("ctl", "cp /usr/lib/slurm-share/job_submit.lua /etc/slurm/job_submit.lua")
    assert file.read_text() == ours


@planted("old-lua", "ctl")
def old_lua(site: Site) -> Planter:
    file = site.conf / "job_submit.lua"
    ours = file.read_text()
    file.write_text(ours.replace("VERDICT", "ANSWER"))
    (found,) = yield
    source = re.search(r"copy (\S+) over it", found["fix"])
    assert source
    site.sh("ctl", f"cp {source[1]} /etc/slurm/job_submit.lua")
    assert file.read_text() == ours


@planted("extra-constraints", "ctl", "n1")
def extra_constraints(site: Site) -> Planter:
    line = next(one for one in (site.conf / "slurm.conf").read_text().splitlines() if one.startswith("SchedulerP"))
    with site.slurm_conf(f"{line},extra_constraints", without="SchedulerParameters="):
        (found,) = yield
        site.setting(found["fix"].removeprefix("config.toml: "))
        assert "verdict-field" not in site.doctor("ctl")


LUA = "job_submit_lua.so"
FOLDER = "$(dirname /usr/lib/*/slurm*/select_cons_tres.so)"
by_script("no-lua-plugin", "ctl", plant=f"mv {FOLDER}/{LUA} /root", remedy=f"mv /root/{LUA} {FOLDER}")


@planted("changed-config", "ctl")
def changed_config(site: Site) -> Planter:
    site.change(site.site / "config.toml", 'mode = "on"', 'mode = "on"  # again')
    job = site.cluster.sbatch("alice", "srun true", "--share-gpu=2", "--hold")
    assert "Extra=slurm-share=off" in site.cluster.job(job)
    site.cluster.exec("ctl", ["scancel", str(job)], check=True)
    assert "job_submit_settings.lua was written from; run `slurm-share" in site.sh("ctl", "slurm-share status || true")
    (found,) = yield
    site.sh("ctl", first_of(found["fix"]))


# --- config.toml -----------------------------------------------------------------------------------------------------


@planted("unknown-key", "n1", "login", "ctl")
def unknown_key(site: Site) -> Planter:
    site.setting('operator_group = "staff"')
    yield
    done = site.cluster.exec("n1", ["slurm-share", "config", "print"])
    assert "operator_group" in done.stdout + done.stderr


@planted("writable-config", "n1", "login")
def writable_config(site: Site) -> Planter:
    site.sh("ctl", "chmod 666 /etc/slurm-share/config.toml")
    (found,) = yield
    narrow(site, "n1", found["fix"])


by_script("closed-config", "n1", "ctl", plant="chmod 600 /etc/slurm-share/config.toml")


@planted("link-to-nowhere", "n1", "login")
def link_to_nowhere(site: Site) -> Planter:
    file = site.site / "config.toml"
    file.rename(site.site / "real.toml")
    file.symlink_to("/srv/slurm-share/config.toml")
    yield
    file.unlink()
    (site.site / "real.toml").rename(file)


@contextmanager
def own_config(site: Site, host: str) -> Iterator[None]:
    """Give that host its own folder /etc/slurm-share."""
    site.sh(host, "cp -a /etc/slurm-share /root/own; mount --bind /root/own /etc/slurm-share")
    try:
        yield
    finally:
        site.sh(host, "umount /etc/slurm-share; rm -r /root/own")


@planted("other-mode", "n1", "ctl", "login")
def other_mode(site: Site) -> Planter:
    with own_config(site, "n1"):
        site.sh("n1", "sed -i 's/^mode = .*/mode = \"observe\"/' /etc/slurm-share/config.toml")
        yield
        text = site.sh("ctl", "cat /etc/slurm-share/config.toml")
        site.cluster.exec("n1", ["tee", "/etc/slurm-share/config.toml"], input=text, check=True)
        assert "controller-mode" not in site.doctor("n1")


@planted("unknown-node", "ctl", "n1", "login")
def unknown_node(site: Site) -> Planter:
    site.setting('exclusive_user_nodes = ["n[1-2]"]')
    (found,) = yield
    assert "names n2, and" in found["what"]


UNKNOWN = 'exclusive_user_partitions = ["gpus"]'
within("unknown-partition", "ctl", "n1", "login", block=lambda site: nullcontext(site.setting(UNKNOWN)))


@planted("mode-file", "n1", "ctl")
def mode_file(site: Site) -> Planter:
    site.write(site.site / "mode", "of\n")
    site.setting('mode_file = "/etc/slurm-share/mode"')
    yield
    site.write(site.site / "mode", "on\n")
    assert "mode-file" not in site.doctor("n1")


@planted("unknown-group", "n1", "ctl", "login")
def unknown_group(site: Site) -> Planter:
    site.setting('operators_group = "gpu-people"')
    (found,) = yield
    for host in HOSTS:
        site.sh(host, first_of(found["fix"]))
    assert all("operators-group" not in said for said in site.doctors(HOSTS).values())
    for host in HOSTS:
        site.sh(host, "groupdel gpu-people")


within("other-shards", "ctl", "n1", block=lambda site: nullcontext(site.setting("shards_per_gpu = 12")))


# --- the host --------------------------------------------------------------------------------------------------------


by_script("closed-shm", "n1", plant="chmod 0700 /dev/shm")


@planted("hidepid", "n1")
def hidepid(site: Site) -> Planter:
    site.sh("n1", "mount -o remount,hidepid=2 /proc")
    yield
    site.sh("n1", "mount -o remount,hidepid=2,gid=$(id -g slurm-share) /proc")
    assert "hidepid" not in site.doctor("n1")
    site.sh("n1", "mount -o remount,hidepid=0,gid=0 /proc")


@planted("open-files", "n1")
def open_files(site: Site) -> Planter:
    stop_slurmd(site)
    start_slurmd(site, "(ulimit -Sn 1024; ulimit -Hn 1024; slurmd)")
    yield
    stop_slurmd(site)
    start_slurmd(site)


@planted("pam-adopt", "n1")
def pam_adopt(site: Site) -> Planter:
    site.sh("n1", "mkdir -p /etc/pam.d; echo 'account required pam_slurm_adopt.so' >/etc/pam.d/slurm-test")
    yield
    with site.slurm_conf("PrologFlags=Alloc,Contain", without="PrologFlags="):
        assert "pam-adopt" not in site.doctor("n1")
    site.sh("n1", "rm /etc/pam.d/slurm-test")


@planted("enroot", "n1")
def enroot(site: Site) -> Planter:
    site.sh(
        "n1", "mkdir -p /etc/enroot/mounts.d; echo /home /home none x-create=dir,bind >/etc/enroot/mounts.d/10.fstab"
    )
    yield
    text = (INSTALL_PAGE.parents[1] / "share/enroot/50-slurm-share.fstab").read_text()
    site.cluster.exec("n1", ["tee", "/etc/enroot/mounts.d/50-slurm-share.fstab"], input=text, check=True)
    assert "containers" not in site.doctor("n1")
    site.sh("n1", "rm -r /etc/enroot")


@planted("full-log", "n1")
def full_log(site: Site) -> Planter:
    site.sh("n1", f"mount -t tmpfs -o size=1M t /var/log; touch {LOG}; chmod 640 {LOG}")
    site.sh("n1", "head -c 1020K /dev/zero >/var/log/messages || true")
    yield
    site.sh("n1", "rm /var/log/messages")
    assert "log" not in site.doctor("n1")
    site.sh("n1", "umount /var/log")


# --- programs --------------------------------------------------------------------------------------------------------


@planted("unusual-place", "n1")
def unusual_place(site: Site) -> Planter:
    stop_slurmd(site)
    programs = "scontrol srun sbatch salloc squeue sinfo"
    site.sh("n1", "mkdir -p /apps/slurm/bin /apps/slurm/sbin; cp -L /usr/sbin/slurmd /apps/slurm/sbin;"
            f" cd /usr/bin; mv {programs} /apps/slurm/bin")  # fmt: skip
    start_slurmd(site, "/apps/slurm/sbin/slurmd")
    try:
        (found,) = yield
        line = re.search(r'SLURM_SHARE_SLURM="\S+"', found["fix"])
        assert line
        site.sh("n1", f"mkdir -p /etc/default; echo '{line[0]}' >/etc/default/slurm-share")
        assert "slurm-commands" not in site.doctor("n1")
    finally:
        stop_slurmd(site)
        site.sh("n1", "mv /apps/slurm/bin/* /usr/bin; rm -rf /apps /etc/default/slurm-share")
        start_slurmd(site)


by_script("no-scontrol", "login", plant="mv /usr/bin/scontrol /root", remedy="mv /root/scontrol /usr/bin")


@planted("wrong-slurm-conf", "login")
def wrong_slurm_conf(site: Site) -> Planter:
    site.env = {"SLURM_CONF": "/etc/slurm-llnl/slurm.conf"}
    yield
    site.env = {"SLURM_CONF": "/etc/slurm/slurm.conf"}


def torn(name: str, file: str, script: str) -> None:
    """Leave a file of our programs as an installation without room leaves it."""
    by_script(name, "n1", plant=f"cp -p {file} /root/{name}; {script} {file}", remedy=f"cp -p /root/{name} {file}")


PACKAGES = "/opt/slurm-share/lib/python3*/site-packages"
torn("torn-command", f"{PACKAGES}/slurm_share/cli/main.py", "truncate -s 700")
torn("torn-library", f"{PACKAGES}/msgspec/__init__.py", "truncate -s 0")
torn("torn-hook", f"{PACKAGES}/slurm_share/share/release.py", "sed -i '/^def release_job(/q'")


@planted("umask", "login")
def umask(site: Site) -> Planter:
    site.sh("login", f"chmod 700 $(dirname {OBJECT}) /opt/slurm-share")
    assert site.cluster.exec("login", ["runuser", "-u", "alice", "--", "llsub", "--help"]).returncode != 0
    found = yield
    site.sh("login", f"{found[0]['fix']}; chmod -R a+rX $(dirname {OBJECT})")
    assert site.cluster.exec("login", ["runuser", "-u", "alice", "--", "llsub", "--help"]).returncode == 0


torn("no-python", "/opt/slurm-share/libexec/slurm-share-prolog", "sed -i '1s,^#!.*,#!/usr/bin/python3.9 -ISB,'")
by_script("not-executable", "n1", plant=f"chmod 644 {BIN}/slurm-share-epilog")


@planted("writable-hooks", "n1")
def writable_hooks(site: Site) -> Planter:
    site.sh("n1", f"chmod 775 {BIN}")
    found = yield
    narrow(site, "n1", found[0]["what"].split()[0])


# --- daemons ---------------------------------------------------------------------------------------------------------


by_script(
    "no-munge",
    "n1",
    plant="kill $(cat /run/munge/munged.pid); while [ -e /run/munge/munged.pid ]; do sleep 0.02; done",
    remedy="setpriv --reuid munge --regid munge --init-groups /usr/sbin/munged </dev/null >/dev/null 2>&1",
)


@planted("no-slurmd", "n1")
def no_slurmd(site: Site) -> Planter:
    stop_slurmd(site)
    try:
        yield
    finally:  # or every later fault would wait for the node
        start_slurmd(site)


@planted("slurmctld-stopped", "ctl", "n1")
def slurmctld_stopped(site: Site) -> Planter:
    site.sh("ctl", "kill -STOP $(cat /run/slurm/slurmctld.pid)")
    try:
        (found,) = yield
        site.sh("ctl", found["fix"])
    finally:
        site.sh("ctl", "kill -CONT $(cat /run/slurm/slurmctld.pid)")
    site.settle()


MUNGED = "$(cat /run/munge/munged.pid)"
by_script("munge-stopped", "n1", plant=f"kill -STOP {MUNGED}", always=f"kill -CONT {MUNGED}")


@planted("no-slurmctld", "ctl", "login", "n1")
def no_slurmctld(site: Site) -> Planter:
    site.sh("ctl", "kill $(cat /run/slurm/slurmctld.pid); while pgrep -x slurmctld >/dev/null; do sleep 0.02; done")
    try:
        yield
    finally:
        up = "until scontrol ping | grep -q 'is UP'; do sleep 0.05; done"
        site.sh("ctl", f"slurmctld </dev/null >/dev/null 2>&1; {up}")
        site.settle()


@planted("drained", "n1")
def drained(site: Site) -> Planter:
    site.sh("ctl", "scontrol update nodename=n1 state=drain reason='Prolog error'")
    (found,) = yield
    site.sh("n1", found["fix"].partition("; then ")[2])
    until(lambda: "node-state" not in site.doctor("n1"), "an answer of the node, which slurmctld asks after that")


@planted("helper-stopped", "n1")
def helper_stopped(site: Site) -> Planter:
    site.n1.prolog(9201)
    site.n1.epilog(9201)
    site.sh("n1", "until pid=$(pgrep -f -- '--[h]elper'); do sleep 0.05; done; kill -STOP $pid")
    (found,) = yield
    pid = re.search(r"process (\d+)", found["what"])
    assert pid
    site.sh("n1", f"kill -9 {pid[1]}")
    until(lambda: not site.n1.alive(int(pid[1])), "the end of the helper")


# --- GPUs and MPS ----------------------------------------------------------------------------------------------------


within("gpu-lost", "n1", block=lambda site: site.n1.gpu_file(3, None))


SERVER = "nvidia-cuda-mps-server"
by_script("no-mps-server", "n1", plant=f"mv /usr/local/bin/{SERVER} /root", remedy=f"mv /root/{SERVER} /usr/local/bin")


@planted("foreign-mps", "n1")
def foreign_mps(site: Site) -> Planter:
    site.sh(
        "n1",
        "mkdir -p /tmp/site-mps/logs; export CUDA_MPS_PIPE_DIRECTORY=/tmp/site-mps;"
        " CUDA_MPS_LOG_DIRECTORY=/tmp/site-mps/logs nvidia-cuda-mps-control -d </dev/null >/dev/null 2>&1",
    )
    (found,) = yield
    site.sh("n1", found["fix"])
    until(lambda: not site.n1.mps(), "the end of the daemon")


within("compute-mode", "n1", block=lambda site: site.n1.gpu_file(1, "compute_mode=3"))


# --- what slurm-share keeps ------------------------------------------------------------------------------------------


@planted("no-tmpfs", "n1")
def no_tmpfs(site: Site) -> Planter:
    site.sh("n1", f"umount {STATE}/user {STATE}; mkdir -p {STATE}/user; chmod 711 {STATE}/user")
    yield
    lines = re.findall(r"^tmpfs (\S+) tmpfs (\S+) 0 0$", INSTALL_PAGE.read_text(), re.MULTILINE)
    assert len(lines) == 2
    site.sh(
        "n1", f"rm -rf {STATE}; " + "; ".join(f"mkdir -p {at}; mount -t tmpfs -o {how} t {at}" for at, how in lines)
    )


@planted("killed-epilog", "n1")
def killed_epilog(site: Site) -> Planter:
    site.n1.prolog(9202)
    site.sh("n1", f'sed -i \'s/"since":[0-9.]*/"since":1.0/g\' {STATE}/ledger')
    (found,) = yield
    site.sh("n1", found["fix"].split(":")[0] + " >/dev/null || true")
    assert site.n1.mps() == []


by_script("open-token", "n1", plant="chmod o+r /etc/slurm-share/agent.token")


# --- the test --------------------------------------------------------------------------------------------------------


def kept(site: Site) -> dict[Path, tuple[bytes, int]]:
    """Return every file of Slurm's and of ours, with its mode."""
    files = [file for folder in (site.conf, site.site) for file in folder.rglob("*") if file.is_file()]
    return {file: (file.read_bytes(), file.stat().st_mode) for file in files}


def put_back(site: Site, was: Mapping[Path, tuple[bytes, int]]) -> None:
    """Restore the files, and Slurm where its own file has changed."""
    is_other = (site.conf / "slurm.conf").read_bytes() != was[site.conf / "slurm.conf"][0]
    for folder in (site.conf, site.site):
        for path in sorted(folder.rglob("*"), reverse=True):
            if path.is_symlink() or (path.is_file() and path not in was):
                path.unlink()
            elif path.is_dir():
                path.rmdir()
    for file, (data, mode) in was.items():
        if not file.exists() or file.read_bytes() != data:
            file.write_bytes(data)
        file.chmod(mode & 0o7777)
    if is_other:
        site.reconfigure()


def news(said: Said, before: Said) -> Said:
    old = Counter(json.dumps(one) for found in before.values() for one in found)
    new: Said = {}
    for check, found in said.items():
        for one in found:
            if old[json.dumps(one)]:
                old[json.dumps(one)] -= 1
            else:
                new.setdefault(check, []).append(one)
    return new


def test_the_list_and_what_is_planted_are_the_same() -> None:
    assert [fault.name for fault in FAULTS] == list(PLANTED)
    assert len(FAULTS) >= 35


TOGETHER = (
    # --- on n1
    ("task-prolog", "old-object", "hooks-twice", "no-epilog", "closed-shm", "enroot", "open-token", "mode-file"),
    ("killed-epilog", "undefined-symbol", "empty-folder", "epilog-second", "hidepid", "full-log", "unknown-group"),
    ("helper-stopped", "missing-object", "wrapper-without-ours", "broken-epilog", "no-mps-server"),
    ("foreign-mps", "killing-epilog", "writable-hooks", "open-files", "pam-adopt", "compute-mode", "other-mode"),
    ("drained", "no-tmpfs", "torn-hook", "gpu-lost"),
    ("unknown-key", "no-python"),
    ("unusual-place",),
    ("no-munge",),
    ("no-slurmd",),
    # --- on the controller
    ("run-in-job", "short-timeout", "oversubscribe-force", "other-shards"),
    ("no-alloc", "extra-constraints", "lua-of-the-site"),
    ("torn-lua", "writable-conf", "unknown-node"),  # slurmctld does not survive a reconfiguration with such a file
    ("private-shm", "changed-config", "no-lua-plugin"),
    ("reverted-conf",),
    ("unread-conf",),
    ("no-slurmctld",),
    # --- on the login host
    ("required-line",),
    ("wrong-slurm-conf",),
)
"""One fault of each check. Those of a line are planted one after the other and named by one doctor on the host that has
them; their remedies follow in the opposite order."""
FOR_EVERY_CHANGE = {
    "helper-stopped",
    "foreign-mps",
    "no-slurmd",
    "no-alloc",
    "reverted-conf",
    "no-slurmctld",
    "required-line",
}
"""Those that begin so are planted in every change, on each kind of host; the others are planted weekly."""


def test_there_is_a_fault_of_each_check_among_those_planted_together() -> None:
    chosen = {name for names in TOGETHER for name in names}
    assert {fault.checks[:1] for fault in FAULTS} == {fault.checks[:1] for fault in FAULTS if fault.name in chosen}


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(names, id=names[0], marks=() if names[0] in FOR_EVERY_CHANGE else pytest.mark.weekly)
        for names in TOGETHER
    ],
)
def test_faults_are_named_with_their_remedies(site: Site, healthy: dict[str, Said], names: tuple[str, ...]) -> None:
    """One fault of each check, on the host that has it; test_a_fault_is_named_on_its_host_only has them one by one."""
    (host,) = {PLANTED[name][0][0] for name in names}
    plant_and_find(site, healthy, [fault for name in names for fault in FAULTS if fault.name == name], (host,))


@pytest.mark.weekly
@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_is_named_on_its_host_only(site: Site, healthy: dict[str, Said], fault: Fault) -> None:
    plant_and_find(site, healthy, [fault], PLANTED[fault.name][0])


OF_PROGRAMS = {"torn-command", "torn-library", "torn-hook", "umask", "no-python"}
"""Faults of our modules, or of the Python that imports them."""


def plant_and_find(site: Site, healthy: dict[str, Said], faults: Sequence[Fault], hosts: tuple[str, ...]) -> None:
    """Plant faults. The first of the hosts must name each with its remedy and nothing else; the others, nothing."""
    was = kept(site)
    planters: list[Planter] = []
    site.words = () if OF_PROGRAMS.intersection(fault.name for fault in faults) else WITHOUT_MODULES
    try:
        for fault in faults:
            planters.append(PLANTED[fault.name][1](site))
            next(planters[-1])
        found = named(site, healthy, faults, hosts)
        for fault in reversed(faults):
            with pytest.raises(StopIteration):
                planters[-1].send(found.get(fault.checks[0], []) if fault.checks else [])
            planters.pop()
    finally:
        for planter in reversed(planters):
            planter.close()
        put_back(site, was)
        site.settle()
        site.env = {}
    # A ping that slurmctld sent while the fault was there can end after it. The other hosts' doctors show with the next
    # fault that nothing of this one is left.
    until(lambda: news(site.doctor(hosts[0]), healthy[hosts[0]]) == {}, f"no finding more of {hosts[0]}")


def named(site: Site, healthy: dict[str, Said], faults: Sequence[Fault], hosts: tuple[str, ...]) -> Said:
    """Run doctor on the hosts and check what it finds; return what the first one finds."""
    if not faults[0].checks:
        (fault,) = faults
        assert site.doctor(hosts[0]) == {}
        assert (site.code, fault.remedy in site.stderr) == (fault.outcome, True), (site.code, site.stderr)
        assert site.stderr.count("\n") == 1, site.stderr
        return {}
    new = {host: news(one, healthy[host]) for host, one in site.doctors(hosts).items()}
    of_faults = {check for fault in faults for check in fault.checks}
    assert {host: set(one) - of_faults for host, one in new.items() if set(one) - of_faults} == {}
    found = new[hosts[0]]
    assert set(found) == of_faults, found
    for fault in faults:
        main = found[fault.checks[0]]
        assert fault.outcome in {one["outcome"] for one in main}, main
        assert any(fault.remedy in one["fix"] for one in main), main
    return found


# --- sites on which all is well --------------------------------------------------------------------------------------


WELL_MADE: dict[str, Callable[[Site], Planter]] = {}


def site_kind(plant: Callable[[Site], Planter]) -> Callable[[Site], Planter]:
    """Register a kind of site under the function's name."""
    WELL_MADE[plant.__name__] = plant
    return plant


def script(site: Site, path: str, text: str) -> None:
    site.write(site.conf / path, f"#!/bin/sh\n{text}\n", 0o755)
    site.conf.joinpath(path).parent.chmod(0o755)


@site_kind
def hooks_of_its_own(site: Site) -> Planter:
    """Give the site its own Prolog, Epilog, TaskProlog, plugstack.conf.d and job_submit.lua, which call ours or leave
    it alone."""
    script(site, "site-prolog", f"logger began; [ ! -x {BIN}/slurm-share-prolog ] || exec {BIN}/slurm-share-prolog")
    script(site, "site-epilog", f"{BIN}/slurm-share-epilog; code=$?; rm -rf /tmp/scratch; exit $code")
    script(site, "task-prolog", "echo export OMP_NUM_THREADS=1")
    site.write(site.conf / "plugstack.conf", "# of the site\ninclude /etc/slurm/plugstack.conf.d/*.conf\n")
    (site.conf / "plugstack.conf.d").mkdir()
    site.write(site.conf / "plugstack.conf.d/share.conf", f"  Optional\t{OBJECT}  # ours\n")
    site.write(site.conf / "plugstack.conf.d/other.conf", "optional /usr/lib/of-the-site.so x=1\n")
    site.write(
        site.conf / "job_submit.lua",
        """local share = dofile("/usr/lib/slurm-share/job_submit.lua")
function slurm_job_submit(job, partitions, uid)
  local code = share.submit(job, partitions, uid)
  if code ~= slurm.SUCCESS then return code end
  job.comment = "of the site"
  return slurm.SUCCESS
end
function slurm_job_modify(job, old, partitions, uid) return share.modify(job, old, partitions, uid) end
""",
    )
    lines = ("Prolog=/etc/slurm/site-prolog", "Epilog=/etc/slurm/site-epilog", "TaskProlog=/etc/slurm/task-prolog")
    with site.slurm_conf(*lines, without=("Prolog=", "Epilog=")):
        yield


@site_kind
def links_in_folders(site: Site) -> Planter:
    """Link our hooks in prolog.d and epilog.d, beside the site's scripts."""
    for which in ("prolog", "epilog"):
        script(site, f"{which}.d/10-site", "exit 0")
        (site.conf / f"{which}.d/zz-slurm-share").symlink_to(f"{BIN}/slurm-share-{which}")
    lines = ("Prolog=/etc/slurm/prolog.d/*", "Epilog=/etc/slurm/epilog.d/*")
    with site.slurm_conf(*lines, without=("Prolog=", "Epilog=")):
        yield


@site_kind
def configless(site: Site) -> Planter:
    """Leave the node only what the controller sends, and no file of Slurm's."""
    with sent_by_the_controller(site, without="PlugStackConfig="):
        yield


@site_kind
def observing(site: Site) -> Planter:
    """Observe, and run doctor without Slurm's commands in PATH, as cron and sudo do."""
    site.setting('mode = "observe"')
    site.env = {"PATH": "/usr/local/bin"}
    yield


@site_kind
def off(site: Site) -> Planter:
    site.setting('mode = "off"')
    yield


@site_kind
def partition_by_partition(site: Site) -> Planter:
    """Let one partition share, and the others not."""
    site.setting('mode = "observe"')
    text = (site.site / "config.toml").read_text()
    site.cluster.write_config(text + '[partition.gpu]\nmode = "on"\n[partition.plain]\nmode = "off"\n')
    yield


@site_kind
def programs_elsewhere(site: Site) -> Planter:
    """Install Slurm in /opt/slurm, with that folder in everybody's PATH."""
    for host in HOSTS:
        site.sh(host, "mkdir -p /opt/slurm/bin; for one in scontrol sbatch srun salloc sinfo squeue; do"
                " ln -s $(readlink -f /usr/bin/$one) /opt/slurm/bin/$one; done")  # fmt: skip
    site.env = {"PATH": "/opt/slurm/bin:/usr/local/bin"}
    yield
    site.env = {}
    for host in HOSTS:
        site.sh(host, "rm -r /opt/slurm")


@site_kind
def running_shared_jobs(site: Site) -> Planter:
    """Start a shared job, with a second one pending and an ordinary one held."""
    job = site.cluster.sbatch("alice", "srun -n1 simgpu-task --memory 100M --seconds 600", "--share-gpu=2")
    site.cluster.sbatch("alice", "srun true", "--share-gpu=2", "--exclusive")
    site.cluster.sbatch("bob", "srun true", "--hold")
    until(lambda: site.n1.mps("server"), "a job with its MPS server")
    until(lambda: f'"job_id":{job}' in site.sh("n1", f"cat {STATE}/ledger"), "the job in the ledger")
    yield
    site.cluster.cancel_all()
    until(lambda: not site.n1.mps(), "the end of the job")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind, marks=() if kind in ("hooks_of_its_own", "configless", "running_shared_jobs") else pytest.mark.weekly
        )
        for kind in WELL_MADE
    ],
)
def test_a_site_on_which_all_is_well_hears_nothing(site: Site, healthy: dict[str, Said], kind: str) -> None:
    was = kept(site)
    planter = WELL_MADE[kind](site)
    try:
        next(planter)
        said = site.doctors(HOSTS)
        assert {host: new for host, one in said.items() if (new := news(one, healthy[host]))} == {}
        with pytest.raises(StopIteration):
            planter.send([])
    finally:
        planter.close()
        put_back(site, was)
        site.env = {}
