"""Every setting of a site, its default, and the reason for it. `config.py` reads the file over these."""

from __future__ import annotations

from dataclasses import dataclass

from . import names


@dataclass(frozen=True, slots=True)
class Settings:
    """What /etc/slurm-share/config.toml may say. Keys are the field names."""

    exclusive_user_partitions: tuple[str, ...] = ()
    """Partitions in which every job holds its nodes for its user alone. Empty: only shared jobs do, so that installing
    the package changes nothing for anybody else. Read by job_submit.lua on the controller."""

    max_share: int = names.SHARE_MAX
    """The largest N of --share-gpu=N here. The default is what MPS carries; lower it where GPUs are small."""

    memory_reserve_percent: float = 2.0
    """GPU memory kept back from the shares for the driver and the server's own context: 2 % covers both on the GPUs
    measured; a share then is (total - reserve) / N."""

    operators_group: str = ""
    """Unix group whose members see every job in `slurm-share status`. Empty: root alone."""

    log_file: str = "/var/log/slurm-share.log"
    """Where Prolog and Epilog write what they decided, one line each. slurmd keeps a hook's own output only when it
    fails. Empty: no log."""

    simulated_gpus: bool = False
    """True: simulated GPUs may be shared. They compute nothing; only test and demonstration clusters want this."""
