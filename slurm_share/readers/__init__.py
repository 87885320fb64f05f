"""Ask the world, answer in records. Each file is the only doorway to its source.

Of Slurm, which of them answers what:

slurm            jobs of the queue, kinds of nodes, whether sbatch knows --share-gpu: squeue, sinfo, scontrol
slurm_nodes      every node on its own, for ten thousand of them: scontrol's text
slurm_pyslurm    where jobs are, through pyslurm where that is wanted and fits
slurm_files      slurm.conf and the files beside it, with what they include
slurm_conf       the one setting in there that a hook needs
slurm_release    which release is on this host
slurm_trial      what Slurm's programs say of files that it has not got yet
allotment        how many CPUs a user may have: sacctmgr
hook_env         what slurmd tells a hook
checkup_slurm    the controller and the files as `slurm-share doctor` looks at them
"""
