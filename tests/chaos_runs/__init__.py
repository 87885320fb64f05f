"""The parts of tests/chaos.py: trouble on a local cluster, and what must be true afterwards.

`plan` says what happens when (from a seed alone), `jobs` what the users submit, `hosts` how a host is troubled, `watch`
looks on and puts drained nodes back as an operator would, `records` is what everybody wrote, `evidence` what
slurmctld and the jobs said, `causes` says what each trouble can do to a job, `verdict` judges, `papers` has it judged
again, and `run` puts them together.
"""
