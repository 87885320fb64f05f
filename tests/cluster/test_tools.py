"""Tools whose work runs in slots, as they are on PyPI: slurm_share/integrations and packaging/docs/tools.md."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from clusters import WITHOUT
from tool_packages import give_or_skip

from localcluster import Cluster, process
from localcluster.records import CURRENT

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.parametrize("cluster", [CURRENT], indirect=True),
    pytest.mark.skipif("python" in WITHOUT, reason="NOT TESTED: the cluster is to have no Python of ours"),
]
N1 = "--gres=gpu:{} -w n1"
"""sbatch's options for so many of the four GPUs of n1."""


def ran(cluster: Cluster, tool: str, folder: str, files: dict[str, str], command: str, *, code: int = 0) -> str:
    """Run a command as alice in a folder with these files; return what it printed. Check its exit code, and that the
    jobs that it made end by themselves."""
    begin = give_or_skip(cluster, "alice", tool)
    home = cluster.home / "alice" / folder
    cluster.as_user("alice", ["mkdir", "-p", folder], check=True)
    for name, text in files.items():
        (home / name).write_text(text)
    done = cluster.as_user("alice", f"{begin}cd {folder} && {command}")
    assert done.returncode == code, done.stdout + done.stderr
    queue = "squeue -h -u alice -t pending,running"
    process.wait_until(lambda: not cluster.as_user("alice", queue).stdout, "an empty queue", 120, every_s=0.2)
    return done.stdout + done.stderr


def read(cluster: Cluster, pattern: str) -> list[str]:
    """Return the lines of alice's files that match, sorted."""
    files: list[Path] = sorted((cluster.home / "alice").glob(pattern))
    return sorted(line for file in files for line in file.read_text().splitlines())


# ---- Hydra ----------------------------------------------------------------------------------------------------------

APP = """import os, sys, time
import hydra
from omegaconf import OmegaConf
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig

ConfigStore.instance().store(name="config", node={"lr": 0})

@hydra.main(config_path=None, config_name="config")
def main(cfg):
    if cfg.lr == 13:
        os.kill(os.getpid(), 9)
    if cfg.lr == 14:
        raise RuntimeError("diverged")
    if cfg.lr == 16:
        sys.exit(3)
    if cfg.lr == 17:
        open("begun", "w").close()
        time.sleep(600)
    names = "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_SHARE_MPS"
    with open(HydraConfig.get().runtime.output_dir + "/where", "w") as file:
        print(HydraConfig.get().job.num, cfg.lr, *map(os.environ.get, names), file=file)
    return cfg.lr

if __name__ == "__main__":
    main()
"""


def test_a_hydra_multirun_of_12_has_four_runs_on_a_gpu_in_one_job(cluster: Cluster) -> None:
    """In the sweep's folders and order; the batches of the sweep are served by the same job."""
    launcher = f"hydra/launcher=slurm_share hydra.launcher.triple=[1,12] \"hydra.launcher.options='{N1.format(3)}'\""
    sweep = "'lr=range(12)' hydra.sweep.dir=out hydra.sweeper.max_batch_size=8"
    said = ran(cluster, "calls", "hydra", {"app.py": APP}, f"python3 app.py -m {launcher} {sweep}")
    assert said.count("Launching") == 2, said
    rows = [line.split() for line in read(cluster, "hydra/out/*/where")]
    assert sorted((int(row[0]), int(row[1])) for row in rows) == [(number, number) for number in range(12)]
    assert {row[4] for row in rows} == {"on"}
    assert len({row[3] for row in rows}) == 1
    assert len({row[2] for row in rows}) == 3
    assert max(Counter(row[2] for row in rows).values()) >= 4
    assert read(cluster, "hydra/out/3/.hydra/overrides.yaml") == ["- lr=3"]


@pytest.mark.weekly
def test_a_hydra_job_that_fails_or_is_killed_is_reported_as_hydra_does(cluster: Cluster) -> None:
    """The other jobs of the sweep run; a wrong option is one sentence."""
    launcher = "hydra/launcher=slurm_share hydra.launcher.local=true hydra.launcher.triple=[1,2] hydra.sweep.dir=o"
    said = ran(cluster, "calls", "hydra2", {"app.py": APP}, f"python3 app.py -m {launcher} lr=11,14,13,12", code=1)
    assert "RuntimeError: diverged" in said
    assert "lr=14" in said
    assert len(read(cluster, "hydra2/o/*/where")) == 2
    said = ran(cluster, "calls", "hydra2", {}, f"python3 app.py -m {launcher} lr=13,15", code=1)
    assert "WorkerLost" in said
    said = ran(cluster, "calls", "hydra2", {}, f"python3 app.py -m {launcher} lr=16,18", code=3)
    assert read(cluster, "hydra2/o/1/.hydra/overrides.yaml") == ["- lr=18"]
    wrong = ("hydra.launcher.partition=nowhere hydra.launcher.triple=[1,2]", "hydra.launcher.triple=[1,0]", "")
    for words in wrong:
        said = ran(
            cluster,
            "calls",
            "hydra2",
            {},
            f"python3 -W ignore app.py -m hydra/launcher=slurm_share {words} lr=1",
            code=1,
        )
        assert "hydra/launcher=slurm_share: " in said
        assert "Traceback" not in said


CTRL_C = f"""exec 2>&1
set -m  # job control: without it a program in the background ignores SIGINT
python3 app.py -m hydra/launcher=slurm_share hydra.launcher.triple=[1,2] \\
    "hydra.launcher.options='{N1.format(1)}'" lr=17,17,17 &
until [ -e begun ]; do sleep 0.1; done
kill -INT $!
wait $!
echo ended $?
"""


@pytest.mark.weekly
def test_ctrl_c_in_a_hydra_sweep_ends_its_job_and_the_program(cluster: Cluster) -> None:
    said = ran(cluster, "calls", "hydra3", {"app.py": APP, "interrupted.sh": CTRL_C}, "bash interrupted.sh")
    assert said.splitlines()[-1] == "ended 130", said


# ---- joblib ---------------------------------------------------------------------------------------------------------

JOBLIB = """import os, sys
import joblib
from joblib import Parallel, delayed
from slurm_share.integrations.joblib import register

register()

def where(number):
    return number, os.environ["CUDA_VISIBLE_DEVICES"], os.environ["SLURM_JOB_ID"]

def nested(number):
    return sum(Parallel(n_jobs=2)(delayed(abs)(one) for one in range(number)))

def bad(number):
    return 1 // (number - 7)

with joblib.parallel_config(backend="slurm_share", triple=[1, 4], options=sys.argv[1]):
    found = Parallel()(delayed(where)(number) for number in range(40))
    assert [one[0] for one in found] == list(range(40)), found
    assert len({one[1] for one in found}) == 1 and len({one[2] for one in found}) == 1, found
    assert Parallel(n_jobs=-1)(delayed(nested)(number) for number in range(5)) == [0, 0, 1, 3, 6]
    assert Parallel(n_jobs=2)(delayed(abs)(number) for number in range(2000)) == list(range(2000))
    try:
        Parallel()(delayed(bad)(number) for number in range(40))
    except ZeroDivisionError as error:
        assert "in bad" in str(error.__cause__), error.__cause__
    else:
        raise SystemExit("no exception")
    assert set(Parallel(return_as="generator_unordered")(delayed(abs)(one) for one in range(9))) == set(range(9))
print("fine")
"""


def test_joblib_runs_batches_nested_calls_and_exceptions_in_slots_of_one_job(cluster: Cluster) -> None:
    said = ran(cluster, "calls", "joblib", {"app.py": JOBLIB}, f"python3 app.py '{N1.format(1)}'")
    assert said.splitlines()[-1] == "fine"


# ---- submitit -------------------------------------------------------------------------------------------------------

SUBMITIT = """import os
import time
import submitit

def where(number):
    names = "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    return number, *map(os.environ.get, names)

executor = submitit.AutoExecutor("of", cluster="slurm")
executor.update_parameters(timeout_min=5, gpus_per_node=1, slurm_additional_parameters={"share_gpu": "4,mem=8G"})
once = executor.submit(where, 1)  # tasks_per_node is not given
executor.update_parameters(tasks_per_node=1)
jobs = executor.map_array(where, range(4))
print("results", [job.result() for job in jobs])
once.wait()
print("stderr", once.stderr())
print("quiet", jobs[0].stderr())
print("files", len([name for name in os.listdir("of") if name.startswith(once.job_id) and "log.out" in name]))
"""


def test_four_functions_of_submitit_share_a_gpu_and_a_job_without_tasks_per_node_is_told(cluster: Cluster) -> None:
    said = ran(cluster, "calls", "submitit", {"app.py": SUBMITIT}, "python3 app.py 2>/dev/null")
    rows = re.findall(r"\((\d), '(GPU-[^']+)', '(\d+)', '([^']+)'\)", said)
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    assert len({row[1] for row in rows}) == 1, rows
    assert len({row[2] for row in rows}) == 4, rows
    assert {row[3] for row in rows} == {"0=8192M"}
    hint = 'tasks_per_node=1, gpus_per_node=1, slurm_additional_parameters={"share_gpu": "4,mem=8192M"})'
    assert said.count(hint) == 1, said
    assert "submitit runs its function in each of the 4 slots" in said[: said.index("quiet")]
    assert "files 4" in said


# ---- Snakemake ------------------------------------------------------------------------------------------------------

SNAKEFILE = """
rule all:
    input: "best.txt"
rule train:
    output: "out/{i}.txt"
    resources: gpu_mem="6G", runtime=5
    shell: "echo {wildcards.i} $CUDA_VISIBLE_DEVICES $SLURM_JOB_ID > {output}"
rule best:
    input: expand("out/{i}.txt", i=range(20))
    output: "best.txt"
    shell: "cat {input} > {output}"
rule bad:
    output: "bad.txt"
    shell: "echo no data >&2; exit 3"
"""


@pytest.mark.weekly
def test_20_rules_of_snakemake_run_in_one_job_with_four_on_a_gpu(cluster: Cluster) -> None:
    options = f"--slurm-share-triple 1,8 --slurm-share-options='{N1.format(2)}'"
    command = f"python3 -m snakemake --executor slurm-share --jobs 20 {options}"
    ran(cluster, "snakemake", "snakemake", {"Snakefile": SNAKEFILE}, command)
    rows = [line.split() for line in read(cluster, "snakemake/best.txt")]
    assert sorted(int(row[0]) for row in rows) == list(range(20))
    assert len({row[1] for row in rows}) == 2
    assert len({row[2] for row in rows}) == 1


@pytest.mark.weekly
def test_a_rule_of_snakemake_that_fails_is_reported_with_the_end_of_its_output(cluster: Cluster) -> None:
    command = (
        "python3 -m snakemake --executor slurm-share --jobs 2 --slurm-share-local --slurm-share-triple 1,1 bad.txt"
    )
    said = ran(cluster, "snakemake", "snakemake2", {"Snakefile": SNAKEFILE}, command, code=1)
    assert "no data" in said
    for words in ("", "--slurm-share-triple x", "--slurm-share-triple 1,2 --slurm-share-partition nowhere"):
        command = f"python3 -m snakemake --executor slurm-share --jobs 2 {words} bad.txt"
        said = ran(cluster, "snakemake", "snakemake2", {}, command, code=1)
        assert "slurm-share" in said
        assert "Traceback" not in said


@pytest.mark.weekly
def test_jobs_of_snakemakes_own_slurm_plugin_share_a_gpu(cluster: Cluster) -> None:
    snakefile = SNAKEFILE.replace('gpu_mem="6G"', 'gres="gpu:1", slurm_extra="--share-gpu=4 --ntasks-per-node=1"')
    options = (
        "--slurm-status-command squeue --slurm-init-seconds-before-status-checks 2 --seconds-between-status-checks 2"
    )
    targets = " ".join(f"out/{number}.txt" for number in range(4))
    command = (
        f"python3 -m snakemake --executor slurm --jobs 4 --default-resources slurm_partition=gpu mem_mb=100 {options}"
    )
    ran(cluster, "snakemake", "snakemake3", {"Snakefile": snakefile}, f"{command} {targets}")
    rows = [line.split() for line in read(cluster, "snakemake3/out/*.txt")]
    assert len({row[2] for row in rows}) == 4
    assert len({row[1] for row in rows}) == 1


# ---- Parsl, dask, Optuna, scikit-learn ------------------------------------------------------------------------------

PARSL = """import parsl
from parsl import Config, python_app
from slurm_share.integrations.parsl import gpu_executor

@python_app
def where(number):
    import os, time
    time.sleep(0.2)
    return number, os.environ["CUDA_VISIBLE_DEVICES"], os.environ["SLURM_SHARE_SLOT"], os.environ["SLURM_JOB_ID"]

executor = gpu_executor("4,mem=8G", gpus=2, provider={"partition": "gpu", "walltime": "00:05:00"}, encrypted=False)
with parsl.load(Config(executors=[executor], run_dir="runs")):
    found = [one.result() for one in [where(number) for number in range(64)]]
print([one[0] for one in found] == list(range(64)), *(len({one[at] for one in found}) for at in (1, 2, 3)))
"""


@pytest.mark.weekly
def test_parsl_has_a_worker_in_each_slot(cluster: Cluster) -> None:
    said = ran(cluster, "parsl", "parsl", {"app.py": PARSL}, "python3 app.py")
    assert "True 2 8 1" in said


DASK = """import os, time
from dask.distributed import Client
from dask_jobqueue import SLURMCluster

def where(number):
    time.sleep(0.2)
    return os.environ["CUDA_VISIBLE_DEVICES"], os.environ["SLURM_JOB_ID"]

if __name__ == "__main__":
    with SLURMCluster(
        queue="gpu", cores=1, processes=1, memory="300MB", walltime="00:05:00", python="srun python3",
        job_extra_directives=["--share-gpu=4", "--gres=gpu:1"],
        scheduler_options={"dashboard_address": None}, worker_extra_args=["--no-dashboard"],
    ) as workers:
        workers.scale(jobs=4)
        with Client(workers) as client:
            client.wait_for_workers(4, timeout=300)
            found = client.gather(client.map(where, range(40), pure=False))
    print("GPUs and jobs", len({one[0] for one in found}), len({one[1] for one in found}))
"""


@pytest.mark.weekly
def test_four_workers_of_dask_share_a_gpu(cluster: Cluster) -> None:
    said = ran(cluster, "dask", "dask", {"app.py": DASK}, "python3 app.py")
    assert "GPUs and jobs 1 4" in said


OPTUNA = """import sys
from concurrent.futures import FIRST_COMPLETED, wait
import optuna
from slurm_share import Executor

def train(x, y):
    if x > 9:
        raise ValueError("diverged")
    return (x - 3) ** 2 + y

study = optuna.create_study()
with Executor(triple=[1, 8], options=sys.argv[1]) as executor:
    running = {}
    while len(study.trials) < 60 or running:
        while len(study.trials) < 60 and len(running) < 8:
            trial = study.ask()
            running[executor.submit(train, trial.suggest_float("x", -10, 10), trial.suggest_int("y", 0, 5))] = trial
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            trial = running.pop(future)
            if future.exception() is None:
                study.tell(trial, future.result())
            else:
                study.tell(trial, state=optuna.trial.TrialState.FAIL)
print(len(study.trials), sum(trial.state.is_finished() for trial in study.trials), study.best_value < 20)
"""


@pytest.mark.weekly
def test_optuna_asks_and_tells_over_the_executor(cluster: Cluster) -> None:
    said = ran(cluster, "optuna", "optuna", {"app.py": OPTUNA}, f"python3 app.py '{N1.format(2)}'")
    assert "60 60 True" in said


SKLEARN = """import sys
import joblib
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC
from slurm_share.integrations.joblib import register

register()
X, y = load_digits(return_X_y=True)
search = GridSearchCV(SVC(), {"C": [0.1, 1, 10], "gamma": [1e-4, 1e-3]}, cv=3, n_jobs=-1)
with joblib.parallel_config(backend="slurm_share", triple=[1, 4], options=sys.argv[1]):
    search.fit(X, y)
print(search.best_params_, round(search.best_score_, 3) > 0.9)
"""


@pytest.mark.weekly
def test_a_grid_search_of_scikit_learn_runs_in_slots(cluster: Cluster) -> None:
    said = ran(cluster, "scikit-learn", "sklearn", {"app.py": SKLEARN}, f"python3 app.py '{N1.format(1)}'")
    assert "True" in said.splitlines()[-1]
