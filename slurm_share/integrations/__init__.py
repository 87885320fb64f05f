"""One module for each tool that runs its work in slots: thin, over `slurm_share.executor` or Slurm's options.

They live in the user's Python. Each imports its tool; this package imports none of them.
`discovered/` has the packages that Hydra and Snakemake find by name; the wheel installs them beside `slurm_share`.
"""
