"""The parts of tests/chaos.py: faults on a local cluster, and what must be true afterwards.

`plan` decides the events from a seed, `jobs` has the users' jobs, `cheater` what a third user does to hurt the others,
`hosts` plants the faults, `operator` resumes drained nodes, `records` and `evidence` hold what was written and logged,
`causes` says what each action can do to a job, `verdict` judges, `replay` judges a recorded run, and `run`
combines them.
"""
