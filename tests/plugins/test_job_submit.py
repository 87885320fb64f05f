"""job_submit.lua without Slurm: its decisions about jobs, and its parser of the configuration."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from slurm_share.core import config, names
from slurm_share.core.errors import ConfigError, OptionError
from slurm_share.core.paths import CONFIG_FILE
from slurm_share.doctor.facts import slurm
from slurm_share.share import option

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
    """The table of jobs and configuration texts in job_submit_test.lua."""
    result = subprocess.run(
        ["lua5.1", HERE / "job_submit_test.lua", SCRIPT], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_its_words_are_those_of_names():
    printed = lua(
        "for _, key in ipairs({'CONFIG', 'VERDICT', 'QUESTION', 'VARIABLE', 'DIRECT', 'FORM', 'SHARE_MAX', "
        "'MEM_MAX_MIB', 'MEM_MIN_MIB', 'MEM_BARE_MIN_MIB', "
        "'OPTION_MAX_BYTES'}) do print(share[key]) end"
    )
    assert printed.splitlines() == [
        str(CONFIG_FILE),
        names.VERDICT,
        slurm.QUESTION_NAME,
        names.JOB_CONTROL_VARIABLE,
        names.JOB_CONTROL_DIRECT,
        names.OPTION_FORM,
        str(names.SHARE_MAX),
        str(names.MEM_MAX_MIB),
        str(names.MEM_MIN_MIB),
        str(names.MEM_BARE_MIN_MIB),
        str(names.OPTION_MAX_BYTES),
    ]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_is_judged_as_the_hooks_judge_it(value):
    """A value that passes here and fails in the Prolog would cost a node its time; the other way round, a job."""
    try:
        request = option.parse(value)
        expected = "0" if request is None else str(request.per_gpu)
    except OptionError:
        expected = "nil"
    shown = "".join(f"\\{byte:03d}" for byte in value.encode())
    assert lua(f'print(share.tasks_per_gpu("{shown}"))').strip() == expected


# --- the configuration, read in two languages -------------------------------------------------------------------------

READER = """
local function hex(text)
  return (string.gsub(text, ".", function(c) return string.format("%02x", string.byte(c)) end))
end
while true do
  local size = io.read("*n", "*l")
  if not size then break end
  local settings = share.settings(size > 0 and io.read(size) or "")
  local words = {}
  if settings then
    words = { settings.mode, string.format("%.0f", settings.shards_per_gpu), settings.verdict_field }
    for _, name in ipairs(settings.exclusive_user_partitions) do words[#words + 1] = "list:" .. hex(name) end
    for _, name in ipairs(settings.exclusive_user_nodes) do words[#words + 1] = "node:" .. hex(name) end
    for name, mode in pairs(settings.partitions) do words[#words + 1] = "mode:" .. hex(name) .. ":" .. mode end
  end
  io.write(settings and table.concat(words, " ") or "nil", "\\n")
  io.flush()
end
"""

Reading = tuple[str, int, str, tuple[str, ...], tuple[str, ...], dict[str, str]]
"""mode, shards_per_gpu, verdict_field, exclusive_user_partitions, exclusive_user_nodes, and the mode of each partition
named."""


class LuaReader:
    """share.settings() of job_submit.lua, in one process for many texts."""

    def __init__(self) -> None:
        prelude = f"slurm = {{ NO_VAL = 0, NO_VAL16 = 0 }} share = dofile({str(SCRIPT)!r}) "
        command = ["lua5.1", "-e", prelude + READER]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __call__(self, text: str) -> Reading | None:
        """Return the settings; None: refused."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        letter = text.encode()
        self.process.stdin.write(b"%d\n%b" % (len(letter), letter))
        self.process.stdin.flush()
        answer = self.process.stdout.readline().decode().split()
        if answer == ["nil"]:
            return None
        found = [bytes.fromhex(word[5:]).decode() for word in answer if word.startswith("list:")]
        nodes = [bytes.fromhex(word[5:]).decode() for word in answer if word.startswith("node:")]
        pairs = [word.split(":") for word in answer if word.startswith("mode:")]
        modes = {bytes.fromhex(name).decode(): mode for _, name, mode in pairs}
        return answer[0], int(answer[1]), answer[2], tuple(found), tuple(nodes), modes


@pytest.fixture(scope="module")
def read_in_lua() -> Iterator[LuaReader]:
    """Return the reader, whose process ends with the module."""
    reader = LuaReader()
    with reader.process:
        yield reader
        assert reader.process.stdin is not None
        reader.process.stdin.close()


def read_in_python(text: str) -> Reading | None:
    """Return the hooks' settings; None: refused."""
    try:
        found = config.parse(text, "config.toml")
    except ConfigError:
        return None
    modes = {name: of.mode for name, of in found.partitions.items()}
    of = found.settings
    lists = (of.exclusive_user_partitions, of.exclusive_user_nodes)
    return of.mode, of.shards_per_gpu, of.verdict_field, *lists, modes


def is_toml(text: str) -> bool:
    """Return whether the text is TOML, with any keys."""
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


TEXTS = [
    "", "\n", " \t\n# nothing", "# no newline", "\r\n# a\r\n", "mode = 'on'\r", "# \x01", "# \x7f",
    "# für alle\nmode='on'", 'mode = "on"', "mode = 'off'", 'mode = """observe"""', "mode = '''on'''",
    'mode = """\non"""', 'mode = "\\u006f\\x6e"', 'mode = "\\u006F\\U0000006e"', 'mode = "o\\n"', 'mode = "ON"',
    "mode = on", "mode = true", "mode = 1", "mode = []", "mode", 'mode = "on" "off"', 'mode = "on" # why',
    'mode = "on", x = 1', 'mode = "on"\nmode = "on"', '"mode" = "on"', "'mode' = 'on'", '"m\\u006fde" = "on"',
    'mode="on"\n\n\nshards_per_gpu=8', ' mode = "on"', "mode =\n'on'", "\\mode = 'on'", 'mo de = "on"',
    "shards_per_gpu = 720_720", "shards_per_gpu = 720__720", "shards_per_gpu = _720", "shards_per_gpu = 720_",
    "shards_per_gpu = +7", "shards_per_gpu = -7", "shards_per_gpu = -0", "shards_per_gpu = 007", "shards_per_gpu = 0",
    "shards_per_gpu = 0_1", "shards_per_gpu = 0xB0_00", "shards_per_gpu = 0o17", "shards_per_gpu = 0b1_1",
    "shards_per_gpu = 0X1", "shards_per_gpu = 0b2", "shards_per_gpu = 0x_1", "shards_per_gpu = +0x1",
    "shards_per_gpu = 48.0", "shards_per_gpu = 4e1", "shards_per_gpu = 4294967293", "shards_per_gpu = 4294967294",
    "shards_per_gpu = '8'", "shards_per_gpu = true", "shards_per_gpu = 99999999999999999999999999",
    "shards_per_gpu = 0x1FFFFFFFFFFFFFFFFF", "shards_per_gpu = 1 2", "shards_per_gpu = 1.", "shards_per_gpu = .5",
    "shards_per_gpu = 1 # x", "memory_reserve_percent = 2.5", "memory_reserve_percent = 2_0.2_5",
    "memory_reserve_percent = 2e0", "memory_reserve_percent = 2.0E-1", "memory_reserve_percent = 2.",
    "memory_reserve_percent = 2._5", "memory_reserve_percent = 02.5", "memory_reserve_percent = +2.5e+0_1",
    "memory_reserve_percent = nan", "memory_reserve_percent = 2e", "memory_reserve_percent = 2ee1",
    "switched_off = true", "switched_off = true\nmode = 'on'\n[partition.gpu]\nmode = 'on'",
    "switched_off = false\nmode = 'on'", "switched_off = 'true'\nmode = 'on'", "switched_off = True",
    "switched_off = 1",
    "switched_off = []", "verdict_field = 'comment'", "verdict_field = 'extra'", "verdict_field = 'admin_comment'",
    "verdict_field = ''", "verdict_field = []", "exclusive_user_nodes = ['n1', 'n[2-3]']",
    "exclusive_user_nodes = 'n1'",
    "simulated_gpus = false", "simulated_gpus = False", "exclusive_user_partitions = []",
    "exclusive_user_partitions = ['gpu', \"debug\",]", "exclusive_user_partitions = [,]",
    "exclusive_user_partitions = ['a',,'b']", "exclusive_user_partitions = [ # x\n'a', # y\n\n]",
    "exclusive_user_partitions = ['a' 'b']", "exclusive_user_partitions = [1]", "exclusive_user_partitions = [['a']]",
    "exclusive_user_partitions = 'a'", 'exclusive_user_partitions = ["""a""", """b"" """]',
    'exclusive_user_partitions = ["""a\\\n   \n  b"""]', 'exclusive_user_partitions = ["""a"""""]',
    'exclusive_user_partitions = ["""a""""""]', "exclusive_user_partitions = ['''a''''']",
    'exclusive_user_partitions = ["\\b\\t\\f\\r\\"\\\\"]', 'exclusive_user_partitions = ["\\q"]',
    'exclusive_user_partitions = ["\\ud800"]', 'exclusive_user_partitions = ["\\u00e9\\u20ac\\U0001F600"]',
    'exclusive_user_partitions = ["\\U00110000"]', "exclusive_user_partitions = ['é€😀']",
    "exclusive_user_partitions = ['a\tb']", "exclusive_user_partitions = ['a\x00']",
    'exclusive_user_partitions = ["""a \\ \n b"""]', 'exclusive_user_partitions = ["""a \\ b"""]',
    "[partition.gpu]\nmode = 'off'", '[partition."gpu"]\nmode = "off"', "[partition.'g.u']\nmode = 'on'",
    "[partition]", "[partition.gpu]", "[ partition . gpu ]\nmode='off'", "[partition.gpu] # x\nmode='off'",
    "[partition.gpu] mode='off'", "[partition.gpu\nmode='off'", "[partition]\ngpu.mode = 'on'",
    "[partition]\ngpu = {mode = 'on'}", "partition.gpu.mode = 'on'", "partition . gpu . mode = 'on'",
    "partition.gpu = {mode = 'on'}", "partition = {gpu = {mode = 'on'}, x = {}}",
    "partition = {gpu = {mode = 'on',}}", "partition = {gpu.mode = 'on', x.mode = 'off'}",
    "partition = {gpu = {mode = 'on'}, gpu.max_share = 2}", "partition = {\n}",
    "partition = {gpu = {mode = 'on'}}\n[partition.x]", "partition = {}\npartition.x.mode = 'on'", "partition = 1",
    "partition = []", "partition = {gpu = 1}", "partition.gpu = 'on'", "[[partition]]",
    "[[partition.gpu]]\nmode='on'", "[partition.gpu]\n[partition.gpu]", "[partition.gpu]\n[partition]\nx.mode = 'on'",
    "[partition.gpu]\n[partition]\ngpu.mode = 'on'", "[partition]\ngpu.mode='on'\n[partition.gpu]",
    "partition.gpu.mode = 'on'\n[partition.x]\nmode = 'off'", "partition.gpu.mode = 'on'\n[partition.gpu]",
    "[partition.gpu]\nmode='on'\nmode='on'", "partition.gpu.mode = 'on'\n[partition]\nx.mode = 'on'",
    "[partition.gpu]\nmode = 'maybe'", "[partition.gpu]\nmode = 1",
    "mode = 'on'\n[partition.gpu]\nmax_share = 4\n[partition.x]\nmode = 'off'", "[partition.gpu.x]\nmode = 'on'",
    "[partition.gpu]\nshards_per_gpu = 4", "[partition.gpu]\nmode = 'on'\n[partition.gpu.more]",
    "mode = 'on'\n[mode]", "[mode]\nmode = 'on'",
    "[partition.gpu]\nclean_up = ['shm',\n 'tmp'] # x\nsm = '30%'\n[partition.'']\nmode='on'", "[]", "[partition.]",
    "[.partition]", "[partition..gpu]", "log_file = ''\nmax_share = 0x10\nhook_deadline_s = 1e0\nmode = 'on'",
    "node_feature = 'gpu-share_1.x'", "node_feature = 'a&b'", "node_feature = 1", "node_feature = ''",
    "date = 2026-11-20", "a = 1", "a = [1, {b = [2]}]\nmode = 'on'", "[x]\nmode = 'on'", "\ufeffmode = 'on'",
    "mode = '\ud7ff'", "é = 1", "-_9 = 1", "= 1", "a.'b\nc' = 1", '"""a""" = 1',
]  # fmt: skip

FRAGMENTS = [
    *[
        "mode",
        "shards_per_gpu",
        "exclusive_user_partitions",
        "partition",
        "partition.gpu",
        '."g x"',
        ".mode",
        "max_share",
    ],
    *[" = ", "=", "[", "]", "[[", "]]", "{", "}", ",", ".", "#", "\n", "\r\n", " ", "\t", "\\", '"', "'", '"""', "'''"],
    *[
        '"on"',
        "'off'",
        '"observe"',
        "720_720",
        "8",
        "1.5",
        "true",
        '["gpu", "x"]',
        "{mode = 'on'}",
        "\\n",
        "\\u0041",
        "é",
        "a",
    ],
    *[
        "\n[partition.gpu]\n",
        "\n[partition]\n",
        "\nmode = 'on'\n",
        "\npartition.x.mode = 'off'\n",
        "\ngpu.mode = 'on'\n",
    ],
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_file_is_read_as_the_hooks_read_it(read_in_lua, text):
    _compare(read_in_lua, text)


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join))
@example("[partition.gpu]\n[partition]\ngpu.mode = 'on'\n")
def test_pieces_in_any_order_are_read_as_the_hooks_read_them(read_in_lua, text):
    """A file that one of the two takes and the other does not would share where the hooks do not."""
    _compare(read_in_lua, text)


@settings(max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from([text for text in TEXTS if is_toml(text)]),
    st.integers(0, 200),
    st.integers(0, 2),
    st.sampled_from(FRAGMENTS),
)
def test_a_slip_of_the_pen_is_read_as_the_hooks_read_it(read_in_lua, text, at, less, more):
    at = min(at, len(text))
    _compare(read_in_lua, text[:at] + more + text[at + less :])


def _compare(read_in_lua: LuaReader, text: str) -> None:
    found, wanted = read_in_lua(text), read_in_python(text)
    if wanted is not None or not is_toml(text):
        assert found == wanted, text
