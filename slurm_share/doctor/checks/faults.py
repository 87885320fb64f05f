"""Faults of real sites, with the checks that find each one and the remedy that they give.

A test makes each fault on a cluster, compares the findings with this table and applies the remedy
(tests/cluster/test_site_faults.py). `slurm-share doctor --explain` prints the table.
"""

from __future__ import annotations

from msgspec import Struct

from ..facts.records import Outcome, Shown


class Fault(Struct, frozen=True):
    """A mistake or failure that happens on sites."""

    name: str
    what: str
    """Description of the fault."""
    checks: Shown
    """Names of the checks that report it, and no others do; none: doctor itself exits with `outcome`."""
    outcome: Outcome | int
    remedy: str
    """Text contained in the first check's fix, or in the sentence with which doctor ends."""


FAULTS = (
    # --- plugstack.conf and the plugin
    Fault("required-line", "plugstack.conf has a second line for the plugin, `required`", ("plugstack",), "WARN",
          "take that line out of /etc/slurm/plugstack.conf"),
    Fault("path-not-sent", "PlugStackConfig names a path, and the nodes are configless", ("plugstack",), "FAIL",
          "take PlugStackConfig out"),
    Fault("carriage-return", "plugstack.conf was edited on Windows", ("plugstack",), "FAIL", "sed -i 's/\\r$//'"),
    Fault("undefined-symbol", "the plugin's object wants a symbol that Slurm here does not have", ("plugin-loads",),
          "FAIL", "install slurm-share-spank anew"),
    Fault("later-libc", "the plugin's object was built on a host with a later libc", ("plugin-loads",), "FAIL",
          "install slurm-share-spank anew"),
    Fault("missing-object", "a configless node without the plugin's package", ("plugin",), "FAIL",
          "install slurm-share-spank on this host"),
    Fault("old-object", "the plugin's link points to the object of an older Slurm", ("plugin-release",), "FAIL",
          "slurm-share doctor --fix"),
    # --- slurm.conf
    Fault("reverted-conf", "configuration management put back a slurm.conf without our lines", ("same-conf",), "FAIL",
          "slurm-share install shows the lines that are missing"),
    Fault("unread-conf", "slurm.conf has a word that Slurm does not know", ("slurm-conf",), "FAIL",
          "correct the line"),
    Fault("empty-folder", "Prolog= names a folder in which nothing is", ("hook-files",), "FAIL",
          "put a file there, such as a link to /opt/slurm-share/bin/slurm-share-prolog, or take the line out"),
    Fault("wrapper-without-ours", "the site's own Prolog no longer calls ours", ("prolog",), "FAIL",
          "Prolog=/opt/slurm-share/bin/slurm-share-prolog"),
    Fault("no-epilog", "the Epilog line is missing", ("epilog",), "FAIL",
          "Epilog=/opt/slurm-share/bin/slurm-share-epilog"),
    Fault("hooks-twice", "the Prolog has a line in slurm.conf and a link in prolog.d", ("hooks-once",), "WARN",
          "leave one of them"),
    Fault("epilog-second", "another Epilog runs before ours", ("hook-order",), "WARN", "name the link zz-slurm-share"),
    Fault("run-in-job", "PrologFlags has RunInJob", ("run-in-job",), "FAIL", "take RunInJob out of PrologFlags"),
    Fault("no-alloc", "PrologFlags has no Alloc", ("prolog-flags",), "WARN", "add Alloc to PrologFlags"),
    Fault("short-timeout", "PrologEpilogTimeout=5", ("hook-time",), "FAIL", "raise what is named"),
    Fault("task-prolog", "the TaskProlog exports CUDA_VISIBLE_DEVICES", ("task-prolog",), "FAIL",
          "leave it be where SLURM_SHARE_SLOT is set"),
    Fault("broken-epilog", "the site's Epilog has a syntax error", ("script-fails",), "FAIL", "put the script right"),
    Fault("failing-prolog", "a site's Prolog ends with `exit 1`, whatever happens", ("script-fails",), "FAIL",
          "put the script right"),
    Fault("killing-epilog", "the site's Epilog ends all MPS daemons: pkill -f nvidia-cuda-mps", ("script-gpus",),
          "FAIL", "take the command out"),
    Fault("quitting-task-epilog", "the TaskEpilog sends quit to nvidia-cuda-mps-control", ("script-gpus",), "FAIL",
          "take the command out"),
    Fault("mode-prolog", "a site's Prolog sets the compute mode of the GPUs", ("script-gpus",), "WARN",
          "take the command out"),
    Fault("lost-task-prolog", "TaskProlog names a file that is not there", ("script-fails",), "FAIL",
          "put the script right, or take it out of slurm.conf"),
    Fault("private-shm", "every job has a /dev/shm of its own", ("private-shm",), "FAIL", "Dirs=/tmp"),
    Fault("private-run", "every job has a /run/slurm-share of its own", ("private-shm",), "FAIL",
          "take /run/slurm-share out of the folders in job_container.conf"),
    Fault("oversubscribe-force", "a partition has OverSubscribe=FORCE", ("exclusive",), "FAIL",
          '`[partition.packed] mode = "off"`'),
    Fault("writable-conf", "everybody in a group may write slurm.conf", ("conf-owner",), "FAIL",
          "chown root and chmod go-w"),
    # --- job_submit.lua
    Fault("torn-lua", "job_submit.lua was copied onto a full disk", ("lua-syntax", "job-submit"), "FAIL",
          "correct the line"),
    Fault("lua-of-the-site", "the site's own job_submit.lua does not call ours", ("job-submit",), "FAIL",
          "JobSubmitPlugins=lua; /etc/slurm/job_submit.lua from /usr/lib/slurm-share"),
    Fault("old-lua", "the packages were upgraded, and the site's copy of job_submit.lua was not", ("job-submit",),
          "WARN", "copy /usr/lib/slurm-share/job_submit.lua over it"),
    Fault("extra-constraints", "SchedulerParameters has extra_constraints", ("verdict-field",), "FAIL",
          'config.toml: verdict_field = "comment"'),
    Fault("no-lua-plugin", "Slurm's own plugin for Lua was not installed with an upgrade", ("lua-plugin",), "FAIL",
          "install a Slurm that was built with Lua"),
    Fault("changed-config", "config.toml was changed, and not written for job_submit.lua", ("lua-settings",), "FAIL",
          "slurm-share config write-lua"),
    # --- config.toml
    Fault("unknown-key", "a key of config.toml is misspelt", ("config",), "FAIL", "slurm-share config print"),
    Fault("writable-config", "config.toml is writable by everybody", ("config",), "FAIL", "chown root and chmod go-w"),
    Fault("closed-config", "config.toml can be read by root alone", ("config", "controller-mode"), "FAIL",
          "chmod a+rX /etc/slurm-share/config.toml"),
    Fault("link-to-nowhere", "config.toml is a link to a file server that is not mounted", ("config",), "FAIL",
          "mount what the link points to"),
    Fault("other-mode", "one node has an old config.toml, which only observes", ("controller-mode",), "FAIL",
          "copy the controller's config.toml here"),
    Fault("unknown-node", "exclusive_user_nodes names a node that Slurm does not have", ("partitions",), "WARN",
          "put the name right in config.toml"),
    Fault("unknown-partition", "exclusive_user_partitions names a partition that Slurm does not have", ("partitions",),
          "WARN", "put the name right in config.toml"),
    Fault("mode-file", "mode_file has a word that is none", ("mode-file",), "WARN", "slurm-share off --cluster"),
    Fault("unknown-group", "operators_group is not known on this host", ("operators-group",), "WARN",
          "groupadd gpu-people"),
    Fault("other-shards", "shards_per_gpu is not the number of shards in gres.conf", ("gres",), "FAIL",
          "slurm-share install --shards"),
    # --- the host
    Fault("closed-shm", "/dev/shm has mode 0700", ("shared-memory",), "FAIL", "chmod 1777 /dev/shm"),
    Fault("hidepid", "/proc is mounted with hidepid=2", ("hidepid",), "WARN",
          "mount /proc with gid=GROUP and put the user slurm-share into that group"),
    Fault("open-files", "slurmd was started with 1024 open files", ("open-files",), "FAIL",
          "systemctl edit slurmd: LimitNOFILE=131072"),
    Fault("pam-adopt", "PAM uses pam_slurm_adopt without Contain", ("pam-adopt",), "WARN",
          "add Contain to PrologFlags"),
    Fault("enroot", "enroot is set up, and its containers do not see the state folder", ("containers",), "WARN",
          "50-slurm-share.fstab"),
    Fault("full-log", "the disk of the hooks' log is full", ("log",), "WARN",
          "make room, or put log_file in config.toml where root can write"),
    # --- programs
    Fault("unusual-place", "Slurm is in a folder of the site's, and PATH does not have it", ("slurm-commands",), "WARN",
          'a line SLURM_SHARE_SLURM="/apps/slurm" in /etc/default/slurm-share'),
    Fault("no-scontrol", "Slurm's client programs are not installed", ("slurm-commands",), "FAIL",
          "install Slurm's client programs"),
    Fault("wrong-slurm-conf", "SLURM_CONF names a file that is not there", (), 2, "set it right, or unset it"),
    Fault("torn-command", "a module of slurm-share's commands was torn by a full disk", (), 3,
          "install slurm-share on this host anew"),
    Fault("torn-library", "a library that slurm-share brings along lost a file", (), 3,
          "install slurm-share on this host anew"),
    Fault("torn-hook", "a module that only the hooks need was torn", ("modules",), "FAIL",
          "install slurm-share on this host anew"),
    Fault("umask", "slurm-share was installed with umask 077: users cannot run it", ("modules", "plugin"), "FAIL",
          "chmod -R a+rX /opt/slurm-share"),
    Fault("no-python", "the Python of the hooks was removed by an upgrade", ("hook-programs",), "FAIL",
          "after an upgrade of Python: install it anew"),
    Fault("not-executable", "a copy without modes: our Epilog cannot be run", ("hook-files", "hook-programs"), "FAIL",
          "chmod 755 /opt/slurm-share/bin/slurm-share-epilog"),
    Fault("writable-hooks", "the folder of our hooks is writable by a group", ("hook-owner", "hook-programs"), "FAIL",
          "chown root and chmod go-w"),
    # --- daemons
    Fault("no-munge", "munged is stopped on a node", ("munge",), "FAIL", "systemctl enable --now munge"),
    Fault("no-slurmd", "slurmd is stopped", ("daemons",), "FAIL", "`systemctl start` what is named"),
    Fault("slurmctld-stopped", "slurmctld hangs: it was stopped with SIGSTOP", ("daemons", "controller"), "FAIL",
          "kill -CONT"),
    Fault("munge-stopped", "munged hangs: it was stopped with SIGSTOP", ("munge",), "FAIL", "kill -CONT"),
    Fault("no-slurmctld", "slurmctld is stopped", ("controller", "daemons"), "FAIL", "systemctl status slurmctld"),
    Fault("drained", "the node is drained since a Prolog failed", ("node-state",), "WARN",
          "scontrol update nodename=n1 state=resume"),
    Fault("helper-stopped", "the hooks' helper was stopped with SIGSTOP", ("hook-helper",), "WARN", "kill -9 it"),
    # --- GPUs and MPS
    Fault("gpu-lost", "a GPU fell off the bus", ("gpu-count",), "FAIL", "nvidia-smi -L"),
    Fault("no-mps-server", "the MPS server program is missing", ("mps-program",), "WARN",
          "install the driver's compute utilities"),
    Fault("foreign-mps", "the node starts an MPS daemon of its own at boot", ("foreign-mps",), "WARN",
          "echo quit | CUDA_MPS_PIPE_DIRECTORY=/tmp/site-mps nvidia-cuda-mps-control"),
    Fault("compute-mode", "a GPU was left in Exclusive_Process", ("compute-mode",), "WARN", "nvidia-smi -i GPU-"),
    # --- what slurm-share keeps
    Fault("no-tmpfs", "the tmpfs of the state folder was unmounted", ("state-folder", "users-folder"), "WARN",
          "the lines for /etc/fstab in install.md"),
    Fault("killed-epilog", "a job's Epilog was killed, and its MPS daemon is still there", ("ledger",), "WARN",
          "slurm-share doctor --fix"),
    Fault("open-token", "the agents' token is readable by everybody", ("agent-token",), "FAIL",
          "chmod o= /etc/slurm-share/agent.token"),
)  # fmt: skip
