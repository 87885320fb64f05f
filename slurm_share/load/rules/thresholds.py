"""The numbers that advice and reports judge load by, each with its source. Percent unless said otherwise.

There is one table for all sites: an own threshold of a site would make its figures incomparable with the papers'.
"""

from __future__ import annotations

GPU_FULL = 80.0
"""SM activity at which more tasks only wait for one another: no task is added from here on. Source: RAD-RM (CARMA) adds
none to a GPU whose SMACT is above 80 % (75 % made jobs wait longer). DCGM's manual, "Profiling Metrics": 0.8 or more is
needed for effective use of the GPU."""

DRAM_FULL = 80.0
"""Memory bandwidth at which no task is added. Source: DCGM's manual, the same chapter: about 0.8 is the most that
programs reach."""

GPU_BAND = (50.0, 100.0)
"""Good GPU load, of the GPUs that somebody has. Source: LLSC's LLload documentation ("0.5 or more for one GPU, 1.0 or
more for two")."""

CPU_BAND = (50.0, 150.0)
"""Good CPU load, of the CPUs that somebody has. Source: the same page ("24 to 72 on 48 cores")."""

CPU_FULL = CPU_BAND[1] / 2
"""CPU load at which no task is added: with twice as many it would leave LLSC's band."""

CPU_AIM = 100.0
"""CPU load that tasks are added up to: the middle of LLSC's band, every CPU busy and none waited for."""

IDLE = 1.0
"""Below this GPU load, a task does nothing on its GPU: more of them would do as little. Source: jobstats says of a job
at 0 % that it is a mistake of the program or of its options, and advises nothing else."""

LOW_USE = 5.0
"""Below this GPU load, what the tasks wait for is found out first: more of them would wait as well. Source: LLSC's
recipe, which measures a rate before it adds tasks; 4 tasks at 3 % would need 100 to fill a GPU, and load does not grow
evenly over such a distance."""

LOW_USE_CPU = 5.0
"""Percent of one CPU for each task: the same of a job without GPUs. A task that works has a whole one."""

EMPTIER = 0.5
"""Tasks are spread unevenly if the load of another GPU of the node is below this factor times that of a full one."""
STEADY_EMPTIER = 0.75
"""The same after an advice that said so. The difference is larger than a noise of 10 % on both loads."""

DISAGREE = 20.0
"""The load is not steady if the means of two windows differ by so many points, and"""
DISAGREE_TIMES = 2.0
"""by this factor. Both, so that noise on a small or a large load does not count."""

HELD_IDLE = 5.0
"""GPU utilisation below which a GPU that a job holds is idle: the job would lose nothing without it. Source: ours, as
jobstats and Princeton's policy for jobs with zero GPU utilisation, with room for a monitor or a display that is drawn
now and then."""

HELD_IDLE_S = 600.0
"""Seconds that it is below: loading data and compiling take minutes, and are no reason to say anything. Ours."""

PEAK_AT_CAP = 95.0
"""Percent of a task's memory cap: a peak above it may be the cap's, not the task's own."""

PREALLOCATED = 70.0
"""Percent of a GPU's memory held by one: JAX takes 75 % of it at its start (XLA_PYTHON_CLIENT_MEM_FRACTION), TensorFlow
nearly all, whatever they need. Source: their manuals, "GPU memory allocation" and "Limiting GPU memory growth"."""

UNLIKE = 2.0
"""Tasks are unlike if the largest was seen with so many times the GPU memory of the median of those that run, and"""
UNLIKE_MIB = 1024
"""with so much more: below, contexts and libraries are most of it. Ours."""
UNLIKE_TASKS = 3
"""Of fewer tasks nobody can say what is usual."""

YOUNG_S = 60.0
"""Seconds. Before, nothing is advised: start-up (30 s at least in the packing papers) and the first steps are no
measure of what follows; what one task needs shows within its first minute."""

SHORT_S = 300.0
"""Seconds. Before, confidence is low. Source: jobstats judges no job that ran for less (its minimum run time)."""

LONG_S = 900.0
"""Seconds. The longest window of load; from here on confidence can be high."""

GROWTH = 2
"""Times as many tasks as now, where the load does not show room for more, at most from half load on. Source: LLSC's
tuning recipe doubles; throughput against tasks is concave in every paper, so a doubling too much costs little."""

GROWTH_MOST = 4
"""Times as many tasks as now, at most, whatever the load: what was not measured is not far from what was. Source:
LLSC's paper, where load grew evenly from 1 task to 4 on a GPU and no further."""

STEADY_RISE, STEADY_FALL = 1.08, 1.15
"""Factors: the previous verdict stays until the load is that far above, or below, the threshold at which it would
change. Together they are more than a noise of 10 % either way (1.1 / 0.9)."""

STEADY_NUMBER = 1.25
"""Factor by which the number of tasks must differ from the previous advice to replace it."""

STEADY_WEIGHT = 0.25
"""Weight of the newest figures in the running mean of the load; the mean before has the rest."""

RATE_GAIN, RATE_SPREADS = 1.10, 2.0
"""More tasks are worth it from this factor of work a second on, if the difference is also more than so many median
absolute deviations of the windows. Source: ours, as the trials of a run of llsub (packaging/docs/packing.md)."""
RATE_WINDOWS = 3
"""Windows of each task, before its rate counts as that of so many tasks. Ours: of fewer nobody can say how they
differ."""
RATE_WINDOWS_LONG = 6
"""Windows from which confidence in a comparison of rates can be high."""
