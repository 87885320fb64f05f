"""`llmapreduce` on real slurmctld and slurmd: every option, and the files it makes."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import Counter
from collections.abc import Iterator

import pytest
from clusters import by_release, cluster_of

from localcluster import Cluster

pytestmark = pytest.mark.cluster

MAPPER = r"""#!/bin/bash
said="$(cat "$1") rank=$LLMR_RANK id=$LLMRID node=$LLMR_NODE_ID of=$LLMR_TASKS_PER_NODE min=$LLMR_RANK_MIN
max=$LLMR_RANK_MAX sub=$LLMR_LOG_SUBDIR dir=$LLMR_LOG_DIR host=$SLURMD_NODENAME gpu=$CUDA_VISIBLE_DEVICES
threads=$OMP_NUM_THREADS cpus=$SLURM_CPUS_PER_TASK job=$SLURM_JOB_ID"
echo "mapping $1"
echo $said > "$2"
"""
REDUCER = """#!/bin/bash
printf 'with' > "$2"; printf ' <%s>' "$@" >> "$2"; echo >> "$2"
cat "$1"/* >> "$2"
"""
ALL = [f"f{number:02}" for number in range(1, 17)]
"""Names and contents of the sixteen inputs of LLSC's pictures."""
_numbers = itertools.count(1)


class Place:
    """A folder of alice's with programs and inputs, and the command in it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.path = f"/home/alice/mr{next(_numbers)}"
        self.bash(f"mkdir {self.path}")
        self.write("map.sh", MAPPER)
        self.write("reduce.sh", REDUCER)
        self.sh("mkdir in; for f in $(seq -f f%02g 16); do echo $f > in/$f; done")

    def bash(self, script: str) -> tuple[int, str]:
        done = self.cluster.as_user("alice", script)
        return done.returncode, done.stdout + done.stderr

    def sh(self, script: str) -> str:
        """Run a shell script in the folder; it must end with 0."""
        code, text = self.bash(f"cd {self.path} || exit\n{script}")
        assert code == 0, text
        return text

    def write(self, name: str, text: str) -> None:
        self.sh(f"printf %s {shlex.quote(text)} > {name} && chmod +x {name}")

    def run(self, *options: str, env: str = "", wait: str = "--wait") -> tuple[int, str]:
        words = ["--mapper=map.sh", "--input=in", "--output=out", *options, wait]
        return self.bash(f"cd {self.path} && {env} llmapreduce {shlex.join(words)}")

    def good(self, *options: str) -> str:
        code, text = self.run(*options)
        assert code == 0, text + self.bash(f"cat {self.path}/MAPRED*/logs/llmapreduce*")[1]
        return text

    def files(self, folder: str = "out") -> list[str]:
        return sorted(self.sh(f"cd {folder} && find . -type f").replace("./", "").split())

    def outputs(self, folder: str = "out") -> dict[str, dict[str, str]]:
        """Return what each start of the mapper printed, by input."""
        lines = self.sh(f"cat {folder}/*").splitlines()
        return {line.split()[0]: dict(word.partition("=")[::2] for word in line.split()[1:]) for line in lines}

    def ranks(self, folder: str = "out") -> list[int]:
        """Return the rank that processed each of the sixteen inputs."""
        found = self.outputs(folder)
        assert sorted(found) == ALL
        return [int(found[name]["rank"]) for name in ALL]


@pytest.fixture
def place(cluster: Cluster) -> Place:
    return Place(cluster)


def option(job: str, name: str) -> str:
    match = re.search(rf"\b{name}=(\S+)", job)
    return match[1] if match else ""


def job_of(text: str, which: str = "map") -> int:
    return int(re.findall(rf"Submitted {which} job (\d+)", text)[0])


def test_np_deals_blocks_whose_lowest_have_the_extra_one_and_the_reducer_follows(place: Place) -> None:
    text = place.good("--np=3", "--reducer=reduce.sh")
    assert place.ranks() == [0] * 6 + [1] * 5 + [2] * 5
    assert place.files() == [f"{name}.out" for name in ALL]
    lines = place.sh("cat llmapreduce.out").splitlines()
    assert lines[0] == f"with <{place.path}/out> <{place.path}/llmapreduce.out>"
    assert [line.split()[0] for line in lines[1:]] == ALL
    assert "MAPRED" not in place.sh("ls -a")
    map_job = place.cluster.job(job_of(text))
    assert (option(map_job, "NumTasks"), option(map_job, "NumCPUs")) == ("3", "3")
    assert option(place.cluster.job(job_of(text, "reduce")), "NumCPUs") == "1"


@pytest.mark.weekly
def test_distributions_ndata_and_keep(place: Place) -> None:
    """Four runs at once: cyclic, ndata in blocks, ndata dealt in turn with a --np that does not count, and a queue."""
    commands = {
        "cyclic": "--np=3 --distribution=cyclic --keep=true",
        "ndata": "--ndata=3",
        "both": "--ndata=3 --np=2 --distribution=cyclic",
        "dynamic": "--np=4 --distribution=dynamic",
    }
    told = place.sh(
        "".join(
            f"llmapreduce --mapper map.sh --input in --output {name} {words} --wait > {name}.log 2>&1 & "
            for name, words in commands.items()
        )
        + "wait; cat *.log"
    )
    assert told.count("all done") == 4, told
    assert place.ranks("cyclic") == [index % 3 for index in range(16)]
    assert place.ranks("ndata") == [index // 3 for index in range(16)]
    assert place.ranks("both") == [index % 6 for index in range(16)]
    assert set(place.ranks("dynamic")) <= {0, 1, 2, 3}
    assert "--np=2 is ignored because of --ndata" in told
    kept = place.sh("ls -d MAPRED.*").split()
    assert len(kept) == 1
    logs = place.sh(f"cd {kept[0]}/logs && ls -d p*; ls p*").split()
    assert [name for name in logs if name.startswith("map.sh")] == [f"map.sh.log.{rank}" for rank in range(3)]
    assert place.sh(f"grep -h mapping {kept[0]}/logs/p0-*/map.sh.log.1").count("mapping") == 5
    assert {"map.sh", "launch.sh", "finished"} <= set(place.sh(f"ls {kept[0]}").split())


def test_a_triple_has_its_nodes_its_variables_and_further_inputs_in_the_same_job(place: Place) -> None:
    text = place.good("--np=[2,4,1]", "--keep=true")
    found = place.outputs()
    assert place.ranks() == [index // 2 for index in range(16)]
    hosts = {one["node"]: one["host"] for one in found.values()}
    assert len(set(hosts.values())) == 2
    assert {one["job"] for one in found.values()} == {str(job_of(text))}
    for one in found.values():
        rank, node = int(one["rank"]), int(one["node"])
        assert (node, int(one["id"]), one["of"], one["threads"]) == (rank // 4, rank % 4, "4", "1")
        assert (int(one["min"]), int(one["max"])) == (node * 4, node * 4 + 3)
        folder = f"p{node * 4}-p{node * 4 + 3}_{one['host']}"
        assert one["sub"] == folder
        assert one["dir"] == f"{place.path}/MAPRED.1/logs/{folder}"
    assert {f"p0-p3_{hosts['0']}", f"p4-p7_{hosts['1']}"} <= set(place.sh("ls MAPRED.1/logs").split())
    gpus = {(one["host"], one["gpu"]) for one in found.values()}
    assert Counter(host for host, _ in gpus) == dict.fromkeys(hosts.values(), 2)


@pytest.mark.weekly
def test_a_triple_larger_than_the_work_is_made_smaller_and_said(place: Place) -> None:
    place.sh("rm in/f0[4-9] in/f1*")
    text = place.good("--np=[2,8,1]")
    assert "[2,8,1] is 16 processes for 3 inputs; [2,2,1] is enough" in text
    assert {one["node"] for one in place.outputs().values()} == {"0", "1"}
    assert "this job uses 2 on each" in text
    assert " -g " not in text


@pytest.mark.weekly
def test_more_processes_than_inputs_or_than_the_partition_has(place: Place) -> None:
    """32 CPUs: with 3 for each process there is room for 5 + 2 + 2."""
    assert "the partition gpu has room for 9 of 16 processes at once" in place.good("--np=16", "--slotsPerTask=3")
    assert sorted(set(place.ranks())) == list(range(9))
    text = place.good("--np=99", "--output=more")
    assert "--np=99 is more than the number of inputs; 16 processes will run" in text
    assert place.ranks("more") == list(range(16))


@pytest.mark.weekly
def test_without_a_number_each_input_has_its_process(place: Place) -> None:
    place.good()
    assert place.ranks() == list(range(16))


@pytest.mark.weekly
def test_mimo_starts_the_mapper_once_a_process_with_a_file_of_pairs(place: Place) -> None:
    place.write("map.sh", '#!/bin/bash\necho "$@" >> starts.$LLMR_RANK\nwhile read a b; do cp $a $b; done < "$1"\n')
    place.good("--np=3", "--apptype=mimo", "--keep=true")
    assert place.files() == [f"{name}.out" for name in ALL]
    assert place.sh("cat starts.*").split() == [f"{place.path}/MAPRED.1/input_{number}" for number in (1, 2, 3)]
    pairs = place.sh("cat MAPRED.1/input_1").splitlines()
    assert pairs == [f"{place.path}/in/{name} {place.path}/out/{name}.out" for name in ALL[:6]]
    place.sh("rm starts.*")
    place.good("--ndata=5", "--apptype=mimo", "--distribution=dynamic", "--output=again")
    assert len(place.sh("cat starts.*").split()) == 4
    assert len(place.files("again")) == 16
    assert place.sh("ls -d MAPRED.*").split() == ["MAPRED.1"]


@pytest.mark.weekly
def test_the_names_of_outputs(place: Place) -> None:
    place.sh("rm in/f0[2-9] in/f1*; mv in/f01 in/f01.txt")
    place.good("--local", "--output=a", "--prefix=new_")
    place.good("--local", "--output=b", "--ext=csv", "--delimeter=-")
    place.good("--local", "--output=c", "--ext=csv", "--delimiter=_")
    place.good("--local", "--output=d", "--ext=noext")
    assert [place.files(folder) for folder in "abcd"] == [
        ["new_f01.txt.out"], ["f01.txt-csv"], ["f01.txt_csv"], ["f01.txt"]
    ]  # fmt: skip


@pytest.mark.weekly
def test_sub_folders_keep_their_tree_and_are_searched_for_an_extension(place: Place) -> None:
    place.sh(
        "rm in/*; mkdir -p in/x/y in/.git; for f in top.txt x/one.txt x/y/two.txt x/no.dat; do echo 1 > in/$f; done"
    )
    place.sh("echo 1 > in/.git/hidden.txt")
    place.good("--local", "--output=flat")
    place.good("--local", "--output=in/deep", "--subdir=true")
    place.good("--local", "--output=some", "--subdir=TRUE", "--extSearch=dat")
    place.good("--local", "--output=in/deep", "--subdir=true", "--extSearch=.txt")
    assert place.files("flat") == ["top.txt.out"]
    assert place.files("in/deep") == ["top.txt.out", "x/no.dat.out", "x/one.txt.out", "x/y/two.txt.out"]
    assert place.files("some") == ["x/no.dat.out"]


@pytest.mark.weekly
def test_a_list_gives_the_mapper_its_words(place: Place) -> None:
    """LLSC's two examples: a sweep of parameters, and a list of numbers; and files in quotes."""
    place.write("map.sh", '#!/bin/bash\nprintf "<%s>" "$@" > "got.$(basename -- "${!#}")"\n')
    place.sh(
        "printf '%s\\n' '--batch=64  --rate=0.1' '' '--batch=128 --rate=\"a b\"' > sweep; printf '3\\n5\\n' > numbers"
    )
    place.sh("llmapreduce --mapper ./map.sh --input sweep --output out --wait")
    place.sh("llmapreduce --mapper ./map.sh --input numbers --output out --np=1 --wait")
    assert place.sh("cat got.--rate*") in (
        "<--batch=64><--rate=0.1><--batch=128><--rate=a b>",
        "<--batch=128><--rate=a b><--batch=64><--rate=0.1>",
    )
    assert place.sh("cat got.3.out got.5.out") == f"<3><{place.path}/out/3.out><5><{place.path}/out/5.out>"


@pytest.mark.weekly
def test_the_reducer_has_its_arguments_and_its_file(place: Place) -> None:
    place.good("--np=2", "--reducer=./reduce.sh", "--redout=sum.txt", "--redargs=-x 'two words'")
    assert place.sh("head -1 sum.txt").strip() == f"with <{place.path}/out> <{place.path}/sum.txt> <-x> <two words>"
    assert "MAPRED" not in place.sh("ls -a")


def test_a_map_that_failed_keeps_the_reducer_from_starting_unless_it_is_told_otherwise(place: Place) -> None:
    place.write("bad.sh", '#!/bin/bash\necho mapping $1; case $1 in *f07) echo oh no; exit 3;; esac\ncp "$1" "$2"\n')
    code, text = place.run("--mapper=bad.sh", "--np=2", "--reducer=reduce.sh")
    assert code == 1
    assert "not everything was done; see" in text
    log = place.sh("ls MAPRED.1/logs/p*/bad.sh.log.0").split()[0]
    said = f"  {place.path}/in/f07 -> {place.path}/{log} (exit code 3): oh no"
    assert said in text.splitlines()
    assert said in place.sh("cat MAPRED.1/logs/llmapreduce-launch.log-*").splitlines()
    assert "llmapreduce.out" not in place.sh("ls")
    assert "15 of 16 tasks done" in place.sh("cat MAPRED.1/logs/llmapreduce-launch.log-*")
    assert len(place.files()) == 15
    code, text = place.run("--mapper=bad.sh", "--np=4", "--reducer=reduce.sh", "--changeDepMode=true")
    assert code == 1
    assert len(place.sh("cat llmapreduce.out").splitlines()) == 16
    assert place.sh("ls -d MAPRED.*").split() == ["MAPRED.1", "MAPRED.2"]


@pytest.mark.weekly
def test_a_reducer_that_may_run_after_a_failed_map_does_not_read_what_was_saved(place: Place) -> None:
    place.write("bad.sh", '#!/bin/bash\n[ -e well ] || case $1 in *f07) exit 75;; *f08) exit 3;; esac\ncp "$1" "$2"\n')
    code, _ = place.run("--mapper=bad.sh", "--np=2", "--reducer=reduce.sh", "--changeDepMode=true")
    assert code == 1
    assert "1 of 16 inputs has saved its state" in place.sh("cat MAPRED.1/logs/llmapreduce-reduce.log-*")
    assert "llmapreduce.out" not in place.sh("ls")
    place.sh("touch well; llsub --resume MAPRED.1 --wait && sbatch -W -o /dev/null MAPRED.1/reduce.sh")
    assert len(place.sh("cat llmapreduce.out").splitlines()) == 17


@pytest.mark.weekly
def test_inputs_are_saved_on_the_checkpoint_signal_and_resumed(place: Place) -> None:
    text = '#!/bin/bash\n[ -e well ] && exec cp "$1" "$2"\ntrap "exit 75" USR1\ntouch ready\n'
    place.write("bad.sh", f"{text}while :; do sleep 0.1; done\n")
    code, text = place.run("--mapper=bad.sh", "--np=1", "--checkpoint-signal=USR1@60", wait="--keep=true")
    assert code == 0, text
    job = job_of(text)
    assert "--signal=USR1@60" in place.sh("cat MAPRED.1/run.json")
    place.sh(f"until [ -e ready ]; do sleep 0.1; done; scancel -s USR1 {job}")
    place.cluster.wait(job)
    assert "told to save their state and end: 0" in place.sh("cat MAPRED.1/logs/llmap*")
    place.sh("touch well; llsub --resume MAPRED.1 --wait")
    assert place.files() == [f"{name}.out" for name in ALL]


def test_what_failed_is_resumed_and_then_reduced(place: Place) -> None:
    """Only the input that failed is mapped again. A map without a reducer takes its folder away when it is done."""
    place.write("bad.sh", '#!/bin/bash\necho "$1" >> started\n[ -e well ] || [ "${1%7}" = "$1" ] && cp "$1" "$2"\n')
    code, text = place.run("--mapper=bad.sh", "--np=2", "--reducer=reduce.sh")
    assert code == 1
    assert "llsub --resume" in text
    place.sh("touch well; llsub --resume MAPRED.1 --wait && sbatch -W -o /dev/null MAPRED.1/reduce.sh")
    assert len(place.sh("cat started").split()) == 17
    assert len(place.sh("cat llmapreduce.out").splitlines()) == 17
    assert "MAPRED" not in place.sh("ls -a")
    place.sh("rm well")
    assert place.run("--mapper=bad.sh", "--np=2")[0] == 1
    place.sh("touch well; llsub --resume MAPRED.1 --wait")
    assert "MAPRED" not in place.sh("ls -a")


@pytest.mark.weekly
def test_a_reducer_that_failed_keeps_the_folder(place: Place) -> None:
    place.write("reduce.sh", "#!/bin/bash\nexit 9\n")
    assert place.run("--np=1", "--reducer=reduce.sh")[0] == 1
    assert "the reducer ended with 9" in place.sh("cat MAPRED.1/logs/llmapreduce-reduce.log-*")


@pytest.mark.weekly
def test_a_tempdir_of_its_own_goes_and_one_that_was_there_stays_with_what_was_in_it(place: Place) -> None:
    place.good("--np=2", "--tempdir=new/one", "--apptype=mimo", "--mapper=/bin/true")
    assert place.sh("ls new") == ""
    place.sh("mkdir mine; echo precious > mine/paper; echo 1 > mine/input_list")
    place.good("--np=2", "--tempdir=mine", "--apptype=mimo", "--mapper=/bin/true", "--reducer=/bin/true")
    assert place.sh("ls -A mine").split() == ["input_list", "paper"]
    place.good("--np=2", "--tempdir=mine", "--keep=true")
    assert {"paper", "logs", "run.json", "finished"} <= set(place.sh("ls -A mine").split())
    code, text = place.run("--np=2", "--tempdir=mine")
    assert code == 2
    assert "write another folder" in text


@pytest.mark.weekly
def test_options_reach_the_jobs(place: Place) -> None:
    cluster = place.cluster
    cluster.exec("ctl", ["scontrol", "update", "NodeName=n3", "Features=xeon-g6"], check=True)
    made = ["scontrol", "create", "reservation", "ReservationName=demo", "StartTime=now", "Duration=10", "Users=alice"]
    cluster.exec("ctl", [*made, "Nodes=n3"], check=True)
    try:
        text = place.good(
            "--np=2", "--partition=plain", "--cpuType=xeon-g6", "--reservation=demo", "--slotsPerTask=3",
            "--slotsPerTaskType=2", "--exclusive=true", "--options=--time=7 --comment='my words'",
            "--reducer=reduce.sh",
        )  # fmt: skip
        jobs = [cluster.job(job_of(text, which)) for which in ("map", "reduce")]
    finally:
        cluster.exec("ctl", ["scontrol", "delete", "ReservationName=demo"], check=True)
        cluster.exec("ctl", ["scontrol", "update", "NodeName=n3", "AvailableFeatures=", "ActiveFeatures="], check=True)
    for job in jobs:
        found = [option(job, name) for name in ("Partition", "Features", "Reservation", "TimeLimit", "CPUs/Task")]
        assert found == ["plain", "xeon-g6", "demo", "00:07:00", "3"]
        assert "my words" in job
    assert [option(job, "NumCPUs") for job in jobs] == ["8", "3"]  # all of n3, and what the reducer needs
    assert {(one["host"], one["cpus"]) for one in place.outputs().values()} == {("n3", place.outputs()["f01"]["cpus"])}


@pytest.mark.parametrize(("kind", "cpus"), [("1", ["2", "1"]), ("3", ["1", "2"])])
@pytest.mark.weekly
def test_slots_are_the_maps_or_the_reducers(place: Place, kind: str, cpus: list[str]) -> None:
    text = place.good("--np=1", "--slotsPerTask=2", f"--slotsPerTaskType={kind}", "--reducer=reduce.sh")
    jobs = [place.cluster.job(job_of(text, which)) for which in ("map", "reduce")]
    assert [option(job, "CPUs/Task") for job in jobs] == cpus


@pytest.mark.weekly
def test_each_process_has_a_gpu_of_its_own_on_nodes_with_unlike_numbers_of_them(place: Place) -> None:
    place.good("--np=5", "--gpuNameCount=simulated:1", "--slotsPerTask=2")
    processes = {(one["host"], one["rank"]): one["gpu"] for one in place.outputs().values()}
    assert len(processes) == 5
    assert len(set(processes.values())) == 5
    assert all(gpu.startswith("GPU-") for gpu in processes.values())


@pytest.mark.weekly
def test_a_triple_with_gpus_and_a_share(place: Place) -> None:
    place.good("--np=[1,4,1]", "--gpuNameCount=simulated:1")
    assert len({one["gpu"] for one in place.outputs().values()}) == 1
    text = place.good("--np=[1,8,1]", "--share-gpu=4", "--options=-wn2", "--output=shared")
    assert len({one["gpu"] for one in place.outputs("shared").values()}) == 2
    assert "--share-gpu=4" in text


def test_a_call_within_a_task_runs_in_its_callers_place_and_its_task_ends_with_it(place: Place) -> None:
    """Two levels: each of three outer inputs is a folder; the inner reducer writes the outer task's output."""
    place.sh("mkdir -p outer/a outer/b; for f in 1 2 3 4; do echo $f > outer/a/$f; echo 1$f > outer/b/$f; done")
    place.sh("printf '%s\\n' outer/a outer/b > list")
    place.write(
        "inner.sh", '#!/bin/bash\necho "$(cat $1) $LLMR_RANK $LLSUB_SIZE $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES" > $2\n'
    )
    place.write(
        "middle.sh",
        "#!/bin/bash\nmkdir -p work.$LLMR_RANK && cd work.$LLMR_RANK && env > env\n"
        "llmapreduce --mapper=../inner.sh --input=../$1 --output=out --np=2 --reducer=../reduce.sh "
        '--redout="$2" || exit\n'
        'echo "after $LLMR_RANK $CUDA_VISIBLE_DEVICES" >> "$2"\n',
    )
    text = place.sh(
        "llmapreduce --mapper middle.sh --input list --output sums --np=2 --gpuNameCount=simulated:1 "
        "--reducer reduce.sh --slotsPerTask=2 --wait"
    )
    assert text.count("Submitted") == 2  # one map, one reduce: the inner calls have no jobs
    for rank, name in enumerate("ab"):
        first, *lines, last = place.sh(f"cat sums/{name}.out").splitlines()
        assert first.startswith(f"with <{place.path}/work.{rank}/out> <{place.path}/sums/{name}.out>")
        numbers = [f"{'' if name == 'a' else '1'}{number}" for number in (1, 2, 3, 4)]
        gpu = last.split()[2]
        assert last.split()[:2] == ["after", str(rank)]
        assert [line.split() for line in lines] == [[n, r, "2", gpu] for n, r in zip(numbers, "0011", strict=True)]
    assert len(place.sh("cat llmapreduce.out").splitlines()) == 13
    assert "MAPRED" not in place.sh("ls -R -a")


@pytest.mark.weekly
def test_an_inner_map_that_failed_fails_its_outer_task(place: Place) -> None:
    place.sh("echo in > list")
    place.write("middle.sh", "#!/bin/bash\nllmapreduce --mapper=/bin/false --input=$1 --output=out2 --np=1\n")
    code, _ = place.bash(f"cd {place.path} && llmapreduce --mapper middle.sh --input list --output out --wait")
    assert code == 1
    assert "0 of 16 tasks done" in place.sh("cat MAPRED.1/logs/p0-*/middle.sh.log.0")


def test_local_runs_here_and_submits_nothing(place: Place) -> None:
    text = place.good("--local", "--np=2", "--reducer=reduce.sh")
    assert "16 of 16 tasks done" in text
    assert place.ranks() == [0] * 8 + [1] * 8
    assert {(one["job"], one["host"]) for one in place.outputs().values()} == {("", "")}
    assert len(place.sh("cat llmapreduce.out").splitlines()) == 17
    assert "Submitted" not in text
    assert "MAPRED" not in place.sh("ls -a")
    code, text = place.run("--local", "--np=2", "--mapper=/bin/false", "--reducer=reduce.sh", "--redout=never")
    assert code == 1
    assert "never" not in place.sh("ls")
    assert "MAPRED.1" in text


def test_dry_run_makes_nothing(place: Place) -> None:
    code, text = place.run("--np=[2,2,1]", "--reducer=reduce.sh", wait="--dry-run")
    assert code == 0
    assert f"the first start: {place.path}/map.sh {place.path}/in/f01 {place.path}/out/f01.out" in text
    assert "--nodes=2" in text
    assert sorted(place.sh("ls -A").split()) == ["in", "map.sh", "reduce.sh"]


def test_inputs_are_never_overwritten(place: Place) -> None:
    """By no name of their folder; and a folder that a refused run would have made is not there."""
    place.write("bad.sh", '#!/bin/bash\n: > "$2"\n')
    before = place.sh("cat in/*")
    for words in (["--output=in", "--ext=noext"], ["--output=./in/../in/", "--ext=noext"], ["--output=in"]):
        code, text = place.run("--mapper=bad.sh", *words)
        assert code == 2, text
        assert "--output: " in text
    code, text = place.run("--output=new/out", "--options=--qos=nosuch --account=nosuch --time=never")
    assert code == 2, text
    assert place.sh("cat in/*") == before
    assert sorted(place.sh("ls -A").split()) == ["bad.sh", "in", "map.sh", "reduce.sh"]


@pytest.mark.weekly
def test_who_waits_sees_how_far_it_is_and_may_go_away(place: Place) -> None:
    place.write("slow.sh", '#!/bin/bash\nsleep 4; cp "$1" "$2"\n')
    command = "llmapreduce --mapper=slow.sh --input=in --output=out --np=2 --wait"
    place.write("wait.sh", f"#!/bin/bash\necho $$ >pid\nexec {command}\n")
    leave = "until grep -q '2 running' shown || [ -e ended ]; do sleep 0.1; done; kill -INT $(cat pid)"
    typed = "TERM=xterm script -qefc './wait.sh; echo code $?' shown"
    text = place.sh(f"({leave}) >/dev/null 2>&1 & {typed}; touch ended")
    assert "of 16 done, 0 failed, 2 running" in text
    number = job_of(text)
    assert f"job {number} continues: " in text
    assert f"llkill {number} ends all" in text
    assert option(place.cluster.job(number), "JobState") == "RUNNING"
    place.sh(f"llkill {number}")


MISTAKES = [
    (["--mapper=gone.sh"], "--mapper: there is no program gone.sh"),
    (["--output=/root/out"], "cannot make the output folder"),
    (["--np=[9,1,1]"], "[9,1,1] asks for 9 nodes"),
    (["--partition=pla"], "did you mean plain?"),
    (["--redout=/root/x", "--reducer=reduce.sh"], "cannot be written"),
]
MORE_MISTAKES = [
    (["--mapper=in"], "--mapper: in is a folder"),
    (["--mapper=in/f01"], "is not executable; run chmod u+x"),
    (["--reducer=gone"], "--reducer: there is no program gone"),
    (["--input=nowhere"], "there is no folder or list"),
    (["--input=empty"], "contains no files"),
    (["--input=blank"], "is empty; write an input on each line"),
    (["--input=quote"], "line 1 of"),
    (["--output=map.sh"], "is not a folder"),
    (["--np=0"], "--np=0: write a whole number from 1 to"),
    (["--np=[0,8]"], "the triple [0,8]"),
    (["--ndata=x"], "--ndata=x"),
    (["--apptype=foo"], "--apptype=foo: write siso or mimo"),
    (["--distribution=random"], "write block or cyclic or dynamic"),
    (["--keep=yes"], "--keep=yes: write --keep=true or --keep=false"),
    (["--extSearch=txt"], "needs --subdir=true; write that too"),
    (["--slotsPerTaskType=4"], "write 1 (map), 2 (map and reduce) or 3 (reduce)"),
    (["--gpuNameCount=volta:"], "write NAME:COUNT"),
    (["--cyclic"], "there is no option --cyclic"),
    (["--reduceout=x"], "did you mean --redout?"),
    (["--redout=in/f01", "--reducer=reduce.sh"], "would overwrite the input"),
    (["--redout=./map.sh", "--reducer=reduce.sh"], "would overwrite the mapper"),
    (["--redout=out", "--reducer=reduce.sh"], "is a folder; write the name of a file"),
    (["--options=--output=map.sh"], "would overwrite the mapper"),
    (["--np=[1,1]", "--gpuNameCount=9"], "write --gpuNameCount with such a number"),
]


@pytest.mark.parametrize(
    "mistakes", [MISTAKES, pytest.param(MORE_MISTAKES, marks=pytest.mark.weekly)], ids=["", "more"]
)
def test_a_mistake_is_answered_with_a_sentence(place: Place, mistakes: list[tuple[list[str], str]]) -> None:
    place.sh("mkdir empty; echo > blank; echo 'a \"b' > quote")
    for words, sentence in mistakes:
        code, text = place.run(*words)
        assert code == 2, text
        assert sentence in text
        assert "Traceback" not in text
        assert sorted(place.sh("ls -A").split()) == ["blank", "empty", "in", "map.sh", "quote", "reduce.sh"], words


@pytest.fixture(scope="module", params=by_release("llmapreduce-"))
def accounted(request: pytest.FixtureRequest, can_make_clusters: None) -> Iterator[Cluster]:
    """Yield a cluster with accounting, where alice may have six CPUs."""
    with cluster_of("mracct", request.param, accounting=True) as made:
        change = ["sacctmgr", "-i", "modify", "user", "where", "name=alice", "set", "GrpTRES=cpu=6"]
        made.exec("ctl", change, check=True)
        yield made


@pytest.mark.weekly
def test_the_default_number_of_processes_is_the_users_allotment(accounted: Cluster) -> None:
    place = Place(accounted)
    place.good("--slotsPerTask=2")
    assert set(place.ranks()) == {0, 1, 2}
