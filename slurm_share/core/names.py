"""The names slurm-share shares with Slurm, with CUDA and with its own C plugin.

`plugins/names.h` holds the same vocabulary for C: every `#define SS_X` there stands for the `X` here, and
`tests/contract/test_vocabulary.py` keeps the two equal.

The plan
--------
The Prolog decides about a job once per node and writes the decision down as a *plan*; the SPANK plugin and the node
launcher carry it out. It is text, so that C can read it without a library and a person can read it at 3 a.m.::

    slurm-share-plan 3
    job 4711
    uid 2001
    node n2
    share 4,mem=8192M
    gpus 2
    slots 8
    cores 0,8 1,9 2,10 3,11
    note GPU 1 is shared without MPS: its server ended; its tasks take turns, and no cap is enforced
    gpu 0 uuid=GPU-5131... index=0 minor=0 memory_mib=81559 name=NVIDIA H100 80GB HBM3
    gpu 1 uuid=GPU-97aa... index=1 minor=1 memory_mib=81559 name=NVIDIA H100 80GB HBM3
    slot 0 gpu=0 part=0/8 backend=mps memory_cap_mib=8192 memory_ratio=0.100 mps_directory=/run/slurm-share/user/...
    environment CUDA_VISIBLE_DEVICES=GPU-5131... SLURM_SHARE_SLOT=0 XLA_PYTHON_CLIENT_MEM_FRACTION?=0.100
    slot 1 gpu=1 part=4/8 backend=time-slicing memory_cap_mib=8192 memory_ratio=0.100
    environment CUDA_VISIBLE_DEVICES=GPU-97aa... SLURM_SHARE_SLOT=1 XLA_PYTHON_CLIENT_MEM_FRACTION?=0.100
    ...
    end

* Printable ASCII, lines end in one newline, at most PLAN_MAX_LINE bytes each and PLAN_MAX_BYTES in all. The first line
  is PLAN_MAGIC, the last is `end`: a file without it is torn and counts as unreadable.
* `job`, `uid`, `node`, in this order, say whose plan it is; a reader compares them with what Slurm told it.
* A plan goes on in one of three ways. `refused SENTENCE` (then `end`): no task of this job may run on this node, and
  the sentence is for the user. `unshared WHY` (then `end`): the job asked to share and runs as one that did not; such
  a plan lies in UNSHARED_FOLDER. Or `share` (the request, canonical, or with `mps=` as earlier releases wrote it),
  `gpus` and `slots` (how many the job has here), `cores`, `lost` if GPUs of the job do not answer (as Slurm names
  them; none of them is counted or has a slot), any number of `note SENTENCE` (said once in the job's output), the
  GPUs and the slots, each numbered from 0 in order.
* `cores` lists the CPUs of this machine: word k is core k in Slurm's numbering, as the operating system's CPU numbers
  of its hardware threads, joined by commas.
* A GPU has the fields `uuid` and `index` (NVML's), and `minor` (the N of /dev/nvidiaN), `memory_mib`,
  `host_memory=yes` (it has none of its own, and `memory_mib` is the node's) and `simulated=yes` where they are known or
  apply. `name` comes last and may hold blanks.
* A slot has the fields `gpu` (the number of one above), `part` and `backend`; where they apply, `memory_cap_mib`,
  `memory_ratio` (the cap as a part of the whole GPU), `sm_percent`, `mps_directory` (its daemon, which is checked
  before a task starts), `on_gpu` (the job has a part of a GPU: which one), `memory_least_mib` (the part of the cap that
  the task is sure of), `partition` and `sm_count` (its static partition, as CUDA_MPS_SM_PARTITION names it, and the
  multiprocessors of that), `cap_by=driver` (the driver enforces the cap on the task's cgroup), `mps_namespace` (its own
  part of the daemon, a path below `mps_directory`) and `backend_variables`.
  A field that is not listed here, or is there twice, is an error.
* `part=I/P`: the task runs on the I-th of P equal parts of the job's cores on this node. Only the step knows which
  cores those are (ConstrainCores, --exact, -c), so the plugin divides them.
* `environment`, the line after each slot, is what the plugin sets for the task, without knowing what it means:
  `NAME=value` is set, `NAME?=value` only where the user has not set NAME. Values hold no blank and no control
  character. All of it follows from the fields (share/rules/environment.py) but the last `backend_variables` of them.

The record of variables
-----------------------
Whoever sets variables for a task or a batch shell notes them in ENV_GIVEN, beside them in the environment::

    4711 SLURM_SHARE_SLOT CUDA_VISIBLE_DEVICES=GPU-5131... OMP_NUM_THREADS=2

The job's number (0: a run outside any job), then the names with their values, where bytes other than printable ASCII,
the blank and `%` are written as %XX. A name without `=` is slurm-share's own (SLURM_SHARE_*, LLSUB_*, LLMR*), whatever
its value. A job that is submitted from inside another one inherits the environment; what is in the record of another
job and still has the value there is not the user's own, and is removed (plugins/given.c, core/given_variables.py).
ENV_GIVEN does not begin with SLURM_, so that it survives `unset "${!SLURM_@}"`, as the other variables do.

The slots
---------
Beside the plan, SLOTS_FOLDER leads to a folder below USER_FOLDER. There, one file a slot, named by its number, and
SLOTS_LOCK. The process that holds an flock on a slot's file has the slot. A process that chooses slots holds one on
SLOTS_LOCK meanwhile, and no longer. A file is empty until its slot has had a task. Then it says in one line who has
it, or that it was given back (SLOT_USED)::

    step 0 holder 102 8123456 task 112 8123460

The holder of the lock (slurmstepd, or the node launcher) and the task, each as its pid and its start time, field 22 of
/proc/PID/stat; `task 0 0` until it has been forked. A file that nobody has locked while its task lives belongs to that
task all the same: its holder was killed, or it chose the slot itself (a step whose GPUs Slurm binds to its tasks). The
files are their user's to write: any other text means nothing.

The queue
---------
Who finds too few free slots waits for them, in the order of arrival: an srun on the job's only node before it makes its
step; a step of one node that nobody has waited for (srun --async, an srun on another host) in its tasks, before their
programs start. A place is a lock on one byte of SLOTS_QUEUE (an open file description lock of fcntl(2), which ends with
the process). An srun's is one above the highest that is there; that of step s is s * QUEUE_STEP_PLACES, so that steps
are served in the order in which Slurm made them, before the sruns and steps that came later. The first in the queue
looks for slots; the others sleep on the byte before theirs, the further tasks of a step on that of the step. When an
srun finds enough it locks a promise of n slots, n bytes from QUEUE_CLAIMS + p * QUEUE_ROOM on, and leaves its place; a
step's promise begins at QUEUE_STEPS + s * QUEUE_ROOM, and its first task holds it until all have slots. When an srun's
step has a number s, the promise moves to QUEUE_STEPS + s * QUEUE_ROOM. It stands as long
as srun runs; bytes 2s and 2s + 1 of the file (the lower one first) say how many tasks of the step have chosen their
slots since, and only what is left of the promise counts. A process that chooses slots, makes a promise or moves one
holds SLOTS_LOCK, and leaves as many slots free as are promised to others. A process that gives a slot back sets the
times of SLOTS_QUEUE, which wakes the first in the queue.

The srun that prints that it waits locks the byte QUEUE_TOLD until it ends, and so does each that joins the queue or
would print the same meanwhile: a loop of steps has one message, and a later wait has its own.
"""

# --- The option, as users write it (and as `plugins/options.c` parses it) -------------------------------------------
PLUGIN_NAME = "share_gpu"
OPTION = "share-gpu"
OPTION_OFF = "off"
OPTION_MEM = "mem"
OPTION_SM = "sm"
OPTION_MPS = "mps"
SM_EVEN = "even"
SM_FREE = "free"
SM_STATIC = "static"
OPTION_SHARING = "sharing"
SHARING_AUTO = "auto"
SHARING_MPS = "mps"
SHARING_TIME_SLICING = "time-slicing"
SHARING_EXCLUSIVE = "exclusive"
MPS_ON = "on"
MPS_OFF = "off"
"""`mps=on` and `mps=off` are the older words for `sharing=mps` and `sharing=time-slicing`."""
OPTION_SLOT_WAIT = "slot-wait"
"""srun's own: how long it waits for a slot."""
OPTION_FORM = "N[,mem=SIZE[:SIZE]][,sm=PERCENT|even|free|static][,sharing=auto|mps|time-slicing|exclusive], or off"
OPTION_EXAMPLE = "4,mem=8G"

SHARE_MAX = 60
"""Tasks on one GPU: the MPS client limit of a device since CUDA 13.1.
Source: docs.nvidia.com/deploy/mps, "Limitations"."""
MEM_MAX_MIB = 16 * 1024 * 1024
"""16 TiB: above any GPU, below every overflow."""
MEM_MIN_MIB = 64
"""The cap counts the CUDA context of its task (docs.nvidia.com/deploy/mps, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"), which
alone takes some hundred MiB on most GPUs: under a smaller cap no CUDA program starts."""
MEM_BARE_MIN_MIB = 512
"""A smaller number without a unit is asked back: more likely it means GiB, of which the largest GPU has 288 (B300)."""
OPTION_MAX_BYTES = 64
"""The longest valid option is under 62 bytes, without the older words; a longer text is not read."""

# --- How the option travels -----------------------------------------------------------------------------------------
JOB_CONTROL_VARIABLE = "SHARE_GPU"
"""`spank_job_control_setenv` name; job_submit.lua sees it in `spank_job_env`."""
HOOK_VARIABLE = "SPANK_SHARE_GPU"
"""The same in Prolog and Epilog: Slurm adds the prefix, the user's side wrote the value."""
JOB_CONTROL_DIRECT = "SHARE_GPU_SRUN"
"""`1` where srun itself asks for the allocation: job_submit.lua then wants GPUs and tasks in numbers."""
HOOK_DIRECT = "SPANK_SHARE_GPU_SRUN"
"""The same in Prolog and Epilog."""
JOB_CONTROL_NO_GPUS = "SHARE_GPU_NONE"
"""`1` where --gres=none or --gpus-per-task=0 is given: job_submit.lua sees the same job as without the option."""
JOB_CONTROL_OFF = "SHARE_GPU_OFF"
"""`1` where the option is `off`: job_submit.lua then does not ask why the script's #SBATCH line has not been read."""

VERDICT = "slurm-share"
"""The controller's decision about a job's share, in the job's `extra` (or `comment`), behind the user's own text:
``slurm-share=MODE[,WORD...]``, with `;` before it. share/rules/verdict.py knows the words."""
VERDICT_EXTRA = "SLURM_JOB_EXTRA"
VERDICT_COMMENT = "SLURM_JOB_COMMENT"
"""Where a hook finds the two fields."""

# --- Where state lives (see paths.py) --------------------------------------------------------------------------------
CONFIG_FILE = "/etc/slurm-share/config.toml"
STATE_ROOT = "/run/slurm-share"
USER_FOLDER = "user"
"""The folder that users can write to: a file system of its own below STATE_ROOT, so that nobody fills the one of the
ledger."""
JOBS_FOLDER = "jobs"
PLAN_FILE = "plan"
LOADED_FILE = "loaded"
"""Beside the plan, root's: empty until a slurmstepd of the job loads the plugin."""
UNSHARED_FOLDER = "unshared"
"""Below STATE_ROOT, a plan named by its job's number for each job that asked to share and runs unshared here."""
USAGE_FOLDER = "usage"
"""Below STATE_ROOT, root's, 0700: a note for each job whose use is recorded, until its record is written
(usage/note.py)."""
GPU_JOBS_FOLDER = "gpu-jobs"
"""Below STATE_ROOT, root's, 0700: an entry for each job whose GPUs are told to exporters (usage/gpu_jobs.py)."""
LIMITS_PROGRAM = "/opt/slurm-share/bin/slurm-share-limits"
"""Limits the device memory of tasks through the driver, as root (prolog/limits.c)."""
LIMITS_SOCKET = "limits.socket"
"""Beside the plan, root's, 0600 of the job's user: of the job's keeper of memory limits, in jobs that need one."""
LIMITS_LOCK = "limits.lock"
"""Held by that keeper."""
ENV_LIMITS = "_SLURM_SHARE_LIMITS"
"""From a launcher to LIMITS_PROGRAM, which is started in place of a task and removes it: the keeper's socket, the name
of a cgroup, and `GPU=SOFT:HARD` in MiB, between blanks."""
LIMITS_RECORD = "limits"
"""Root's, 0600: the cgroups whose memory the driver limits, for the Epilog if the keeper was killed."""
SLOTS_FOLDER = "slots"
SLOTS_LOCK = "lock"
"""Beside the slot files: held while slots are chosen."""
SLOT_USED = "used"
SLOTS_QUEUE = "queue"
"""Beside the slot files: byte ranges of it are locked by sruns that wait for slots or were promised some."""
SLOTS_REFUSED = "refused"
"""Beside the slot files: not empty where a task of the job was refused on this node."""
QUEUE_STEP_PLACES = 1024
"""Places in the queue from one step to the next: for the sruns that come in between."""
QUEUE_CLAIMS = 1 << 40
"""Where in SLOTS_QUEUE the promises to sruns without a step begin; below are the places of those that wait."""
QUEUE_STEPS = 1 << 50
"""Where the promises to steps begin."""
QUEUE_ROOM = 2048
"""Bytes for the promise to one srun or step: more than PLAN_MAX_SLOTS."""
QUEUE_TOLD = 1 << 60
"""The byte that an srun locks for reading while a message about the wait for slots counts as printed."""
MPS_FOLDER = "mps"
NO_MPS_FOLDER = "no-mps"
"""Root's and empty: the pipe directory of tasks without MPS. CUDA takes a missing variable for /tmp/nvidia-mps, whose
daemon may be another user's."""

# --- The hooks' helper (prolog/front.c asks it, prolog/helper.py is it) -----------------------------------------------
LISTING_SETTING = "exclusive_user_nodes"
"""The setting that makes ordinary jobs the hooks' business: both look for the word in CONFIG_FILE."""
USAGE_SETTING = "usage_record"
"""The same for ordinary jobs with GPUs."""
JOB_MAPPING_SETTING = "job_mapping_folder"
GPUSTAT_SETTING = "gpustat_folder"
"""These two as well."""
HELPER_FOLDER = "/run/slurm-share.hooks"
"""Root's, 0700."""
HELPER_SOCKET = "socket"
HELPER_LOCK = "lock"
"""Held by the helper."""
HELPER_STARTED = "started"
"""There from the start of a helper until it is ready."""
HELPER_MOST_BYTES = 4 * 1024 * 1024
"""The largest environment of a hook that the helper takes: twice what Linux passes on by default."""
HELPER_MOST_VARIABLES = 1000
"""And of how many variables: to set one takes the longer the more there are (setenv of glibc), 10,000 a second."""
HELPER_TAKES = "T"
"""The helper's first word: it takes the hook. Without it, after a second at most, the hook starts as a program."""
HELPER_BEGINS = "B"
"""The next word, of the hook's process: it has done nothing yet and waits for the hook's files."""
HELPER_ENDED = "E"
"""The last word of the hook's process; the byte after it is the hook's exit code."""
ENV_FRONT = "SLURM_SHARE_FRONT"
"""1 where front.c started the hook in Python: a helper would be asked."""

# --- The plan --------------------------------------------------------------------------------------------------------
PLAN_MAGIC = "slurm-share-plan 3"
PLAN_MAX_LINE = 4096
PLAN_MAX_BYTES = 4 * 1024 * 1024
PLAN_MAX_SLOTS = 1024
"""More slots than 16 GPUs x SHARE_MAX."""
NOTE_OF_GUARANTEE = "mem="
"""Beginning of the note that the driver does not hold the guaranteed memory of the slots: the plugin refuses tasks with
it."""

SAMPLE_WORDS = ("sample", "--stream")
"""Arguments of the program that llload runs in a step of the user's job; they tell its steps from the job's own."""

# --- What a task finds -----------------------------------------------------------------------------------------------
ENV_SLOT = "SLURM_SHARE_SLOT"
"""The task's slot on its node, 0 to SLOTS-1; of a job that has a part of one GPU, its slot on that GPU, among the jobs
there. `none`, set by the user before srun: this step takes no slot."""
SLOT_NONE = "none"
ENV_SLOTS = "SLURM_SHARE_SLOTS"
ENV_RANK = "SLURM_SHARE_RANK"
"""The task's number in its step, over all nodes: for splitting independent work."""
ENV_SIZE = "SLURM_SHARE_SIZE"
"""Tasks of the step."""
ENV_JOB = "SLURM_SHARE_JOB_ID"
"""In the batch shell and below: the job whose steps are to find a plan on every node."""
ENV_REQUEST = "SLURM_SHARE_REQUEST"
"""In the batch shell and below: the job's share. srun tells it to the Prolog of a node that has had no step yet."""
ENV_GIVEN = "_SLURM_SHARE_GIVEN"
"""In the batch shell and below: the variables that slurm-share set for the job."""
GIVEN_PREFIX = "SLURM_SHARE_"
"""Variables that are slurm-share's own with any value."""
GIVEN_MAX_BYTES = 16384
"""The most of the record. What does not fit is not in it: an eighth of what Linux takes for one variable."""
ENV_GPU_UUID = "SLURM_SHARE_GPU_UUID"
ENV_GPU_INDEX = "SLURM_SHARE_GPU_INDEX"
"""NVML index on the node: for people. Programs use the UUID."""
ENV_GPU_MINOR = "SLURM_SHARE_GPU_MINOR"
"""The N of the GPU's /dev/nvidiaN, which is Slurm's number for it; only where it is not the index."""
ENV_PER_GPU = "SLURM_SHARE_PER_GPU"
"""N of --share-gpu=N."""
ENV_CORES = "SLURM_SHARE_CORES"
"""The cores of the task's mask as the kernel took it, e.g. 0-3,8."""
ENV_MPS = "SLURM_SHARE_MPS"
ENV_SHARING = "SLURM_SHARE_SHARING"
"""How the task shares its GPU: mps, time-slicing, exclusive (it is alone there) or mig (alone on an instance)."""
ENV_MEM_LIMIT = "SLURM_SHARE_MEM_LIMIT"
"""The component that enforces the task's memory cap: MEM_LIMIT_DRIVER, MEM_LIMIT_MPS or MEM_LIMIT_NONE."""
MEM_LIMIT_DRIVER = "driver"
MEM_LIMIT_MPS = "mps"
MEM_LIMIT_NONE = "none"
ENV_SIMULATED = "SLURM_SHARE_SIMULATED"
"""1 where the GPU is simulated; absent otherwise."""
ENV_MPS_PIPE = "CUDA_MPS_PIPE_DIRECTORY"
ENV_MPS_PROTOCOL = "CUDA_MPS_PROTOCOL_VERSION"
"""The protocol in which a task's own calls of nvidia-cuda-mps-control speak to its daemon."""
ENV_MPS_PARTITION = "CUDA_MPS_SM_PARTITION"
"""A static partition of one daemon, which no other daemon has. A user's own is taken out of slots."""
ENV_SMS = "SLURM_SHARE_SMS"
"""The multiprocessors (SM) of the task's static partition; only where it has one."""
ENV_MPS_MEMORY = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ENV_MPS_THREADS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
ENV_CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
"""A user's own: how many connections his programs have to a GPU, of which MPS has only so many for all clients."""
ENV_VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
ENV_THREADS = "OMP_NUM_THREADS"
ENV_JAX_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
ENV_TF_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"

# --- Exit codes ------------------------------------------------------------------------------------------------------
EXIT_OK = 0
EXIT_USAGE = 2
"""The person's mistake: a sentence on stderr, nothing done."""
EXIT_NODE_UNWELL = 1
"""A hook's: slurmd drains the node, and the hook's output in slurmd's log says why."""
EXIT_SAVED = 75
"""EX_TEMPFAIL of sysexits.h. Of a task: it has saved its state and is not finished. Of a run: no task has failed, and
some have saved their state."""
EXIT_REFUSED = 69
"""A task that must not run (EX_UNAVAILABLE of sysexits.h); its sentence is in the job's output."""
