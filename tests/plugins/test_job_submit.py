"""job_submit.lua without Slurm: its decisions about a job, and its settings."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_share.core import config, names
from slurm_share.core.errors import OptionError
from slurm_share.core.paths import CONFIG_FILE
from slurm_share.core.settings import Settings
from slurm_share.doctor.facts import slurm
from slurm_share.share import lua_settings, option

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parents[1] / "plugins" / "job_submit.lua"

pytestmark = pytest.mark.skipif(shutil.which("lua5.1") is None, reason="NOT TESTED: lua5.1 is not installed")

VALUES = [
    "1", "4", "60", "61", "0", "007", "off", "OFF", "+4", "-1", " 4", "4 ", "4\n", "", ",", "4,", ",4", "4,,mem=8G",
    "4,mem=8G", "4,mem=8gib", "4,mem=8Gb", "4,mem=800", "4,mem=16T", "4,mem=17T", "4,mem=16777216", "4,mem=16777217",
    "4,mem=0", "4,mem=08G", "4,mem=8K", "4,mem=8B", "4,mem=8Gi", "4,mem=8iB", "4,mem", "4,mem=", "4,Mem=8G",
    "4,mem=8G,mem=8G", "4,mem=8G=8G", "4,mem=4294967297T", "4,sm=1", "4,sm=100%", "4,sm=101", "4,sm=0", "4,sm=05",
    "4,sm=50%%", "4,sm=%", "4,sm=even", "4,sm=free", "4,sm=Even", "4,mps=on", "4,mps=off", "4,mps=yes", "4,mps",
    "4,mem=8G,mps=off", "4,sm=50,mps=off", "4,sm=even,mps=off", "4,sm=free,mps=off", "4,mps=on,sm=50%,mem=8G",
    "4,mem=8", "4,mem=511", "4,mem=512", "4,mem=63M", "4,mem=64M", "4,mem=64mib",
    "4,mem=8G:20G", "4,mem=20G:8G", "4,mem=8G:8G", "4,mem=8G:8192M", "4,mem=8G:", "4,mem=:8G", "4,mem=8G:9G:10G",
    "4,mem=8:20G", "4,mem=512:1024", "4,mem=1M:8G", "4,mem=8G:17T", "4,mem=8G:20G,mem=8G", "4,sm=static",
    "4,sm=static%",
    "4,sharing=auto", "4,sharing=mps", "4,sharing=time-slicing", "4,sharing=time_slicing", "1,sharing=exclusive",
    "4,sharing=exclusive", "1,sharing=exclusive,mem=8G", "1,sharing=exclusive,sm=static", "1,sharing=exclusive,sm=free",
    "4,sharing", "4,sharing=", "4,sharing=MPS", "4,sharing=mig", "4,sharing=mps,sharing=mps", "4,sharing=mps,mps=on",
    "4,mps=off,sharing=time-slicing", "4,mps=on,sharing=time-slicing", "4,sharing=auto,mps=on",
    "1,sharing=exclusive,mps=off",
    "4,sharing=time-slicing,mem=8G", "4,sharing=time-slicing,mem=8G:20G", "4,sharing=time-slicing,sm=static",
    "4,sharing=time-slicing,sm=even", "4,sharing=time-slicing,sm=free", "4,sharing=mps,sm=static,mem=8G:20G",
    "60,mem=8388608MiB:16777216MiB,sm=100%,sharing=time-slicing",
    "60,mem=8388608MiB:16777216MiB,sm=free,sharing=time-slicing",
    "4;rm -rf /", "4,gpu=1", "4,off", "off,4", "4,mem=8G" + "," * 60,
]  # fmt: skip


def lua(program: str, *arguments: str) -> str:
    """Return the output of a Lua program; `share` is the table that job_submit.lua returns."""
    prelude = (
        f"slurm = {{ NO_VAL = 4294967294, NO_VAL16 = 65534, SUCCESS = 0, ERROR = -1 }} share = dofile({str(SCRIPT)!r}) "
    )
    command = ["lua5.1", "-e", prelude + program, "/dev/null", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_decisions_hold():
    """The tables of jobs and settings in job_submit_test.lua."""
    result = subprocess.run(
        ["lua5.1", HERE / "job_submit_test.lua", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_its_words_are_those_of_names():
    printed = lua(
        "for _, key in ipairs({'CONFIG', 'SETTINGS', 'WRITE', 'VERDICT', 'QUESTION', 'VARIABLE', 'DIRECT', 'NO_GPUS', "
        "'OFF', 'OPTION', 'FORM', 'SHARE_MAX', 'MEM_MAX_MIB', 'MEM_MIN_MIB', 'MEM_BARE_MIN_MIB', "
        "'OPTION_MAX_BYTES'}) do print(share[key]) end"
    )
    assert printed.splitlines() == [
        str(CONFIG_FILE),
        str(CONFIG_FILE.with_name(lua_settings.NAME)),
        lua_settings.COMMAND,
        names.VERDICT,
        slurm.QUESTION_NAME,
        names.JOB_CONTROL_VARIABLE,
        names.JOB_CONTROL_DIRECT,
        names.JOB_CONTROL_NO_GPUS,
        names.JOB_CONTROL_OFF,
        names.OPTION,
        names.OPTION_FORM,
        str(names.SHARE_MAX),
        str(names.MEM_MAX_MIB),
        str(names.MEM_MIN_MIB),
        str(names.MEM_BARE_MIN_MIB),
        str(names.OPTION_MAX_BYTES),
    ]


def judgement(value):
    """Return N, 0 or nil, as job_submit.lua has it, of a value as the hooks judge it."""
    try:
        request = option.parse(value)
    except OptionError:
        return "nil"
    return "0" if request is None else str(request.per_gpu)


def test_a_value_is_judged_as_the_hooks_judge_it():
    """A value that passes here and fails in the Prolog would cost a node its time; the other way round, a job."""
    shown = ["".join(f"\\{byte:03d}" for byte in value.encode()) for value in VALUES]
    found = lua("".join(f'print(share.tasks_per_gpu("{one}"))' for one in shown)).splitlines()
    assert dict(zip(VALUES, found, strict=True)) == {value: judgement(value) for value in VALUES}


def test_a_wrong_value_is_refused_in_the_wording_of_the_hooks():
    said = lua('local _, _, why = share.share({ share.VARIABLE .. "=4,mem=8" }) print(why)')
    assert said.strip() == f"slurm-share: {OptionError('4,mem=8')}"


# --- the settings, written in Python and read in Lua -----------------------------------------------------------------

READER = """
local function hex(text)
  return (string.gsub(text, ".", function(c) return string.format("%02x", string.byte(c)) end))
end
while true do
  local size = io.read("*n", "*l")
  if not size then break end
  local settings = share.settings(io.read(size))
  local words = { settings.mode, string.format("%.0f", settings.shards_per_gpu), settings.verdict_field,
                  "feature:" .. hex(settings.node_feature), "config:" .. hex(settings.config) }
  for _, name in ipairs(settings.exclusive_user_partitions) do words[#words + 1] = "list:" .. hex(name) end
  for _, name in ipairs(settings.exclusive_user_nodes) do words[#words + 1] = "node:" .. hex(name) end
  for name, mode in pairs(settings.partitions) do words[#words + 1] = "mode:" .. hex(name) .. ":" .. mode end
  io.write(table.concat(words, " "), "\\n")
  io.flush()
end
"""


class LuaReader:
    """share.settings() of job_submit.lua, in one process for many texts."""

    def __init__(self) -> None:
        prelude = f"slurm = {{ NO_VAL = 0, NO_VAL16 = 0 }} share = dofile({str(SCRIPT)!r}) "
        command = ["lua5.1", "-e", prelude + READER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, settings: str) -> tuple[Settings, dict[str, str], bytes]:
        """Return the settings that Lua has, the modes of partitions, and the copy of config.toml."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        letter = settings.encode("ascii")
        self.process.stdin.write(b"%d\n%b" % (len(letter), letter))
        self.process.stdin.flush()
        mode, shards, field, *words = self.process.stdout.readline().decode().split()
        found: dict[str, list[str]] = {"list": [], "node": []}
        modes = {}
        for key, value, *more in (word.split(":") for word in words):
            if key == "mode":
                modes[bytes.fromhex(value).decode()] = more[0]
            elif key != "config":
                found.setdefault(key, []).append(bytes.fromhex(value).decode())
        settings_here = Settings(
            mode=mode,  # type: ignore[arg-type]
            shards_per_gpu=int(shards),
            verdict_field=field,  # type: ignore[arg-type]
            node_feature=found["feature"][0],
            exclusive_user_partitions=tuple(found["list"]),
            exclusive_user_nodes=tuple(found["node"]),
        )
        (copy,) = (word.partition(":")[2] for word in words if word.startswith("config:"))
        return settings_here, modes, bytes.fromhex(copy)


@pytest.fixture(scope="module")
def read_in_lua() -> Iterator[LuaReader]:
    """Return the reader, whose process ends with the module."""
    reader = LuaReader()
    with reader.process:
        yield reader
        assert reader.process.stdin is not None
        reader.process.stdin.close()


TEXTS = [
    "", "# für alle\n", "mode = 'off'", "mode = 'on'\r\nshards_per_gpu = 720_720\r\n",
    'mode = "on"\n\n\n# ]==] \\ " \t',
    "switched_off = true\nmode = 'on'\n[partition.gpu]\nmode = 'on'", "verdict_field = 'comment'",
    "mode = 'on'\n[partition.gpu]\nmax_share = 4\n[partition.\"g.u x\"]\nmode = 'off'\n[partition.'']",
    "exclusive_user_nodes = ['n1', 'n[2-3]']\nexclusive_user_partitions = [\"a\\\"b\\\\\", 'é€😀', 'a\tb']",
    "node_feature = 'gpu-share_1.x'", "partition.gpu = {mode = 'on'}", "shards_per_gpu = 4294967293",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
def test_lua_has_the_settings_that_the_hooks_have(read_in_lua, tmp_path, text):
    """Each setting that Lua needs, each kind of value, and the text itself with every byte."""
    file = tmp_path / "config.toml"
    file.write_bytes(text.encode())
    of = config.load(file)
    needed = Settings(
        mode=of.settings.mode,
        shards_per_gpu=of.settings.shards_per_gpu,
        verdict_field=of.settings.verdict_field,
        node_feature=of.settings.node_feature,
        exclusive_user_partitions=of.settings.exclusive_user_partitions,
        exclusive_user_nodes=of.settings.exclusive_user_nodes,
    )
    modes = {name: settings.mode for name, settings in of.partitions.items()}
    assert read_in_lua(lua_settings.expected(file)) == (needed, modes, text.encode())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary() | st.text().map(str.encode))
def test_lua_has_every_byte_of_the_text(read_in_lua, data):
    """Line ends, quotes and digits after an escape: one byte more or less, and sharing would stay switched off."""
    assert read_in_lua(lua_settings.render(data, config.parse("", "x")))[2] == data
