"""job_submit.lua as slurmctld runs it, in one process for many jobs as a user may describe them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from slurm_share.share import lua_settings

SCRIPT = Path(__file__).parents[2] / "plugins/job_submit.lua"
PROGRAM = """
slurm = { NO_VAL = 4294967294, NO_VAL16 = 65534, SUCCESS = 0, ERROR = -1 }
local said
local function say(form, ...) said = string.format(form, ...) end
slurm.log_user, slurm.log_info, slurm.log_error = say, say, say
local share = dofile(arg[1])
share.CONFIG, share.SETTINGS = arg[2], arg[3]
local function try(input)
  local words = {}
  for word in string.gmatch(input .. "\\0", "([^%z]*)%z") do words[#words + 1] = word end
  local job = { shared = 65534, num_tasks = slurm.NO_VAL, ntasks_per_node = slurm.NO_VAL16, min_cpus = 1,
                cpus_per_task = slurm.NO_VAL16, ntasks_per_tres = slurm.NO_VAL16, min_nodes = slurm.NO_VAL,
                max_nodes = slurm.NO_VAL, sockets_per_node = slurm.NO_VAL16, user_id = 2001, environment = {},
                spank_job_env = { "SHARE_GPU=" .. (words[1] or ""), words[2] or "" }, script = words[3] or "",
                tres_per_node = words[4], partition = words[5], array_inx = words[6], admin_comment = words[7] }
  local code = share.submit(job, {}, 2001)
  assert(code == slurm.SUCCESS or code == slurm.ERROR)
  local asked = { num_tasks = slurm.NO_VAL, ntasks_per_node = slurm.NO_VAL16, shared = slurm.NO_VAL16 }
  asked.partition = words[5]
  share.modify(asked, { admin_comment = words[7] }, {}, 2001)
  assert(said == nil or not string.find(said, "[%c]"), "what is said to a user has a control character")
end
while true do
  local size = io.read("*n", "*l")
  if not size then break end
  local done, why = pcall(try, size > 0 and io.read(size) or "")
  io.write(done and "ok" or "no " .. string.gsub(tostring(why), "%c", "?"), "\\n")
  io.flush()
end
"""
CONFIG = b'mode = "on"\nshards_per_gpu = 720720\nexclusive_user_partitions = ["gpu"]\n'
SEEDS = tuple(
    b"\0".join(words)
    for words in (
        (b"4", b"SHARE_GPU_SRUN=1", b"#!/bin/bash\nsrun torchrun x\n", b"gres/gpu:1", b"gpu", b"1-9", b"a;share-gpu=4"),
        (
            b"2,mem=8G:9G,sm=50%,sharing=mps",
            b"A=1",
            b"",
            b"gres/gpu:a100:2",
            b"gpu,plain",
            b"",
            b"share-gpu=2,mem=8192M",
        ),
        (b"off", b"", b"srun x", b"gres/shard:1", b"plain", b"1-100%4", b""),
        (b"60,mem=16T", b"", b"python -m deepspeed", b"gres/gpu", b"", b"", b"share-gpu="),
    )
)
"""Value, SPANK variable, script, GPUs, partitions, array and comment, a NUL between them."""


class Controller:
    """The process; `close` ends it."""

    def __init__(self, config: Path) -> None:
        config.write_bytes(CONFIG)
        settings = config.with_name(lua_settings.NAME)
        settings.write_text(lua_settings.expected(config))
        program = config.with_name("fuzz.lua")
        program.write_text(PROGRAM)
        command = ["lua5.1", program, SCRIPT, config, settings]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def try_job(self, data: bytes) -> None:
        """Raises RuntimeError with Lua's own words where the script failed on it, or ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"%d\n%b" % (len(data), data))
        self._process.stdin.flush()
        answer = self._process.stdout.readline().decode(errors="replace").rstrip("\n")
        if answer != "ok":
            raise RuntimeError(answer or "it ended")

    def close(self) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
