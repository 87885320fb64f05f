"""The thresholds of advice and reports, each with its source. Percent unless said otherwise.

All sites have the same thresholds, so that figures can be compared with those in the papers.
"""

from __future__ import annotations

GPU_FULL = 80.0
"""SM activity from which more tasks only wait for each other, so no task is added. Source: RAD-RM (CARMA) adds none to
a GPU whose SMACT is above 80 % (75 % made jobs wait longer). DCGM's manual, "Profiling Metrics": 0.8 or more is needed
for effective use of the GPU."""

DRAM_FULL = 80.0
"""Memory bandwidth from which no task is added. Source: DCGM's manual, the same chapter: programs reach about 0.8 at
most."""

GPU_BAND = (50.0, 100.0)
"""Good GPU load, of the GPUs that jobs have. Source: LLSC's LLload documentation ("0.5 or more for one GPU, 1.0 or more
for two")."""

CPU_BAND = (50.0, 150.0)
"""Good CPU load, of the CPUs that jobs have. Source: the same page ("24 to 72 on 48 cores")."""

CPU_FULL = CPU_BAND[1] / 2
"""CPU load from which no task is added: with twice as many it would leave LLSC's band."""

CPU_AIM = 100.0
"""CPU load up to which tasks are added: the middle of LLSC's band, in which every CPU is busy and none has a queue."""

IDLE = 1.0
"""GPU load below which a task does nothing on its GPU, and more tasks would not either. Source: jobstats calls a job at
0 % a mistake of the program or its options, and gives no other advice."""

LOW_USE = 5.0
"""GPU load below which the cause is to be found first: more tasks would wait as well. Source: LLSC's recipe measures a
rate before it adds tasks. 4 tasks at 3 % would need 100 to fill a GPU, and load does not grow evenly that far."""

LOW_USE_CPU = 5.0
"""Percent of one CPU per task below which the cause is to be found first, for a job without GPUs. A task that works
uses a whole CPU."""

OTHERS_CPU = 5.0
"""CPU time outside the job, in percent of the node's CPUs, from which the node's load average shows nothing of the job,
if it is also no less than the job's own. Ours: daemons, and threads of the kernel that serve storage, use less."""

EMPTIER = 0.5
"""Tasks are spread unevenly if the load of another GPU of the node is below this factor times that of a full one."""
STEADY_EMPTIER = 0.75
"""EMPTIER after an advice that said so. The difference is larger than a noise of 10 % on both loads."""

DISAGREE = 20.0
"""The load is not steady if the means of two windows differ by this many points and by the factor DISAGREE_TIMES."""
DISAGREE_TIMES = 2.0
"""See DISAGREE. Both are needed, so that noise on a small or a large load does not count."""

HELD_IDLE = 5.0
"""GPU utilisation below which a GPU that a job holds is idle: the job does not need it. Source: ours, after jobstats
and Princeton's policy for jobs with zero GPU utilisation, with room for a monitor or an occasional display."""

HELD_IDLE_S = 600.0
"""Seconds below HELD_IDLE after which a GPU is idle. Ours: loading data and compiling take minutes."""

SEEN_FROM_START_S = 120.0
"""Seconds by which a job may have run longer than it was watched to count as watched from its start. Ours: a Prolog
that starts daemons, and the interval of a sampler."""

UNUSED_LONG_S = 3600.0
"""Seconds without a process on its GPUs from which a batch job is sure not to need them. Ours: no start-up in the
papers on packing takes an hour."""

STARTING_CORES = 0.5
"""CPU time in cores from which a job that has not used its GPUs may be preparing its input. Ours."""

PEAK_AT_CAP = 95.0
"""Percent of a task's memory cap above which the cap may limit the peak."""

PREALLOCATED = 70.0
"""Percent of a GPU's memory from which a task may have taken it in advance. At their start, JAX takes 75 %
(XLA_PYTHON_CLIENT_MEM_FRACTION) and TensorFlow nearly all. Source: their manuals, "GPU memory allocation" and "Limiting
GPU memory growth"."""

UNLIKE = 2.0
"""Tasks are unlike if the largest took this many times the GPU memory of the running tasks' median, and UNLIKE_MIB
more."""
UNLIKE_MIB = 1024
"""See UNLIKE. Below this difference, contexts and libraries are most of it. Ours."""
UNLIKE_TASKS = 3
"""Least number of tasks for a median. Ours."""

YOUNG_S = 60.0
"""Seconds for which a job is watched before anything is advised: start-up (30 s at least in the packing papers) and
first steps are not typical, and a task shows its needs within its first minute."""

SHORT_S = 300.0
"""Seconds below which confidence is low. Source: jobstats judges no job that ran for less (its minimum run time)."""

LONG_S = 900.0
"""Seconds from which confidence can be high: the longest window of load."""

GROWTH = 2
"""Largest factor of tasks from half load on, or if the load shows no room for more. Source: LLSC's tuning recipe
doubles; throughput against tasks is concave in every paper, so one doubling too many costs little."""

GROWTH_MOST = 4
"""Largest factor of tasks at any load, because load is measured only for the present number. Source: LLSC's paper, in
which load grew evenly from 1 task to 4 on a GPU and no further."""

STEADY_RISE, STEADY_FALL = 1.08, 1.15
"""Factors by which the load must be above, or below, a threshold before the previous verdict changes. Together they are
more than a noise of 10 % either way (1.1 / 0.9)."""

STEADY_MEMORY = 1.25
"""Factor by which the memory of the tasks must differ before a verdict that rests on it changes: more than a noise of
10 % either way. Memory that is too small counts at once."""

STEADY_NUMBER = 1.25
"""Factor by which the number of tasks must differ from the previous advice to replace it."""

STEADY_WEIGHT = 0.25
"""Weight of the newest figures in the running mean of the load."""

RATE_GAIN, RATE_SPREADS = 1.10, 2.0
"""More tasks are worthwhile from this factor of the rate on, if the difference is also more than this many median
absolute deviations of the windows. Source: ours, as in the trials of a run of llsub (packaging/docs/tuning.md)."""
RATE_WINDOWS = 3
"""Windows of each task before its rate counts. Ours: fewer give no deviation."""
RATE_WINDOWS_LONG = 6
"""Windows from which confidence in a comparison of rates can be high."""
