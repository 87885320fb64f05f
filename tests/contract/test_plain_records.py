"""The records of hooks, made by msgspec and by what stands in its place: both behave the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
BEGIN = """
import sys
if sys.argv[1] == "plain":
    sys.path.insert(0, sys.argv[2])
    from slurm_share_hooks import plain_records
    assert plain_records.use()
    assert plain_records.use()
import msgspec
from msgspec import Struct
from msgspec.structs import replace
assert hasattr(msgspec, "convert") is (sys.argv[1] == "msgspec")
def attempt(act, *values, **named):
    try:
        found = act(*values, **named)
        print(found if isinstance(found, (bytes, str)) else repr(found))
    except (TypeError, AttributeError) as error:
        print(type(error).__name__)
"""
RECORDS = """
from slurm_share import errors, mps_control, process, records, settings
from slurm_share.actuators import mps
from slurm_share.readers import cgroups
from slurm_share_hooks import admission
SAMPLE = {"int": 7, "str": "text", "float": 1.5, "bool": True}
made = []
for module in (records, settings, process, cgroups, mps, admission):
    for name, kind in sorted(vars(module).items()):
        if not (isinstance(kind, type) and issubclass(kind, Struct)) or kind.__module__ != module.__name__:
            continue
        print(name, kind.__struct_fields__)
        needed = {}
        for field in kind.__struct_fields__:
            needed[field] = SAMPLE.get(kind.__annotations__.get(field, "").partition(" ")[0], (1, 2))
        attempt(kind)
        attempt(kind, nothing=1)
        attempt(kind, *range(len(kind.__struct_fields__) + 1))
        attempt(lambda: kind(*[3], **{kind.__struct_fields__[0]: 4}))
        record, same = kind(**needed), kind(**needed)
        made.append(record)
        print(record, record == same, record != same, record is same, record == needed)
        first = kind.__struct_fields__[0]
        other = replace(record, **{first: "another"})
        print(other, other == record, getattr(record, first))
        attempt(replace, record, nothing=1)
        attempt(setattr, record, first, 5)
        attempt(setattr, record, "nothing", 5)
        attempt(lambda: hash(record) == hash(same))
        attempt(lambda: len({record, same, other}))
print([one == other for one in made for other in made])
for kind in (records.Gpu, records.MpsPlace):
    attempt(kind, "a", 0, "b", "c")
    attempt(kind, "a", 0, "b", "c", None)
class Lists(Struct):
    own: list[int] = []
    table: dict[str, int] = {}
first, second = Lists(), Lists()
first.own.append(1)
first.table["a"] = 1
print(first, second)
"""
LEDGERS = r"""
import json
from slurm_share import ledger
from slurm_share.errors import StateError
from slurm_share.records import Leaving, Ledger, LedgerJob, ModeBefore, ProcessIdentity
text = "\"quoted\\ \x00\x1f\n\t\b\f\r \x7f \u00e9 \u2028 \U0001f600 /"
job = LedgerJob(7, 2001, "4,mem=8192M", ("GPU-a", text), 8, 1.5, 0, text, "gpu", "sX", 3, ("shm", "tmp"))
bare = LedgerJob(2**40, 0, "", (), -1, 0.1 + 0.2)
leaving = Leaving(job, ProcessIdentity(1, None, 0, "slurmd"), ("/tmp/a", "/dev/shm/b"))
for one in (
    Ledger("boot"),
    Ledger("boot", (job, bare), (ModeBefore("GPU-a", 0),), (leaving,)),
):
    print(ledger.render(one))
    assert ledger.parse(ledger.render(one)) == one
whole = json.loads(ledger.render(one))
def told(data):
    try:
        print(ledger.parse(data))
    except StateError as error:
        print("StateError")
def changed(*place, value):
    copy = json.loads(json.dumps(whole))
    at = copy
    for step in place[:-1]:
        at = at[step]
    if value == "remove":
        del at[place[-1]]
    else:
        at[place[-1]] = value
    told(json.dumps(copy).encode())
for key in ("boot_id", "jobs", "modes", "leaving", "unknown"):
    for value in (None, 1, 1.5, True, "text", [], {}, [1], [None], [{}], {"a": 1}):
        changed("ledger", key, value=value)
for key in LedgerJob.__struct_fields__:
    for value in (None, 1, 0, -1, 1.5, True, "text", "", [], ["a"], [1], [None], {}, 2**62, "remove"):
        changed("ledger", "jobs", 0, key, value=value)
        changed("ledger", "leaving", 0, "job", key, value=value)
for key in ("pid", "start_ticks", "uid", "name"):
    for value in (None, 1, "1", [], "remove"):
        changed("ledger", "leaving", 0, "hook", key, value=value)
changed("version", value=2)
changed("version", value="1")
changed("ledger", value="remove")
for data in (
    b"", b" ", b"{", b"[]", b"null", b"1", b"{}x", b"\xff", b"{\"version\":1}", b"{\"version\":1,}", b"[" * 100000,
    b" {\n\"version\" : 1 , \t\"ledger\" : { \"boot_id\" : \"a\" } } \r\n",
    b"{\"version\":1,\"ledger\":{\"boot_id\":\"a\x01\"}}", b"{\"version\":1,\"ledger\":{\"boot_id\":\"\\ud800\"}}",
    b"{\"version\":1,\"ledger\":{\"boot_id\":\"a\",\"boot_id\":\"b\"}}",
    b"{\"version\":NaN}", b"{\"version\":1,\"ledger\":{\"boot_id\":\"a\",\"x\":Infinity}}", b"{\"version\":01}",
    b"{\"version\":" + b"1" * 5000 + b"}", b"{'version':1}", b"\xef\xbb\xbf{\"version\":1}", b"{\"version\":1e0}",
):
    told(data)
"""


def transcript(which: str, code: str) -> str:
    """What the code says with that kind of records."""
    argv = [sys.executable, "-I", "-c", BEGIN + code, which, str(CHECKOUT)]
    run = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONHASHSEED": "0"})
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


@pytest.mark.parametrize("code", [RECORDS, LEDGERS], ids=["records", "ledgers"])
def test_both_kinds_of_records_behave_the_same(code: str) -> None:
    """Fields, defaults, equality, hashes, changes, refusals; ledgers written, read, and refused."""
    plain, real = (transcript(which, code).splitlines() for which in ("plain", "msgspec"))
    assert len(real) > 100
    assert len(plain) == len(real)
    assert [pair for pair in zip(plain, real, strict=True) if pair[0] != pair[1]] == []
