"""Targets: what agents, nodes, Slurm and the site's files say to the commands, and what people type at them."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from pathlib import Path

import h11
import msgspec
from slurm_share_tui import query, terminal_input, user_config, wire
from slurm_share_tui.query_terms import QueryError, figure_of, unit_of
from slurm_share_tui.screens import log
from slurm_share_tui.widgets.grid_rows import RowSet
from target import Target, each, may_refuse, recorded, text

from slurm_share.core import config, mounts, terminal
from slurm_share.core.errors import SlurmShareError, UsageError
from slurm_share.doctor.facts import slurm as site_facts
from slurm_share.history.rules import report
from slurm_share.install import journal
from slurm_share.load import collectors, metrics, options, recording
from slurm_share.load.agent import client, http_client, http_server, service, socket_server
from slurm_share.load.columns.base import Column
from slurm_share.load.rules import history
from slurm_share.load.sources import agents, frames, origin, prometheus
from slurm_share.node import descendants, process_table
from slurm_share.node.records import Gpu
from slurm_share.share import cluster_status, lua_settings, queue_verdicts
from slurm_share.share.rules import drain, granted, mps, site, switch, verdict
from slurm_share.slurm import backend, conf_text, node_name, submit
from slurm_share.slurm.rules import submitted

NOW_S = 1795271400.0
BOOT = "0c0ffee0-0000-4000-8000-000000000000"

# ---- agents and snapshots -------------------------------------------------------------------------------------------


def try_answers(data: bytes) -> None:
    """Read what is said to an agent, and what an agent or a Prometheus says."""
    for decoder in (socket_server._decoder, client._reply_decoder, prometheus._decoder, recording._heads):
        with may_refuse(msgspec.DecodeError, UnicodeError, RecursionError):
            decoder.decode(data)
    body = http_client.parse_reply(data)
    said = body if isinstance(body, str) else agents.take("n1", body, "alice")
    assert not isinstance(said, str) or said.isprintable()
    with may_refuse(SlurmShareError):
        history.recall(data, BOOT)
    with may_refuse(SlurmShareError):
        journal.decode(data, "journal")


def try_request(data: bytes) -> None:
    """Read a request to the agent's HTTP port."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=http_server.REQUEST_MAX_BYTES)
    with may_refuse(h11.RemoteProtocolError):
        connection.receive_data(data)
        event = connection.next_event()
        if isinstance(event, h11.Request):
            http_server._reply(connection, 401, b"x", "text/plain")


def try_series(data: bytes) -> None:
    try:
        body = prometheus._decoder.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return
    if body.data is not None:
        with may_refuse(ValueError, OverflowError):  # as the source has it
            metrics.snapshots(body.data.result)


def try_frames(data: bytes) -> None:
    joiner = frames.Joiner()
    for line in text(data).split("\n"):
        joiner.feed(line)
    lines = list(frames.split(data, "n1"))
    found = [whole for line in lines if (whole := frames.Joiner(["n1"]).feed(line))] if len(lines) == 1 else []
    assert not found or found == [("n1", data)]


def try_recording(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        for name in ("x.jsonl", "x.gz"):
            file = Path(folder) / name
            file.write_bytes(data)
            with contextlib.closing(recording.Recording(file)) as opened:
                for place in opened.places():
                    with may_refuse(SlurmShareError):
                        opened.at(place)


# ---- /proc -----------------------------------------------------------------------------------------------------------


def try_node(data: bytes) -> None:
    """Read a node on which one process has a command line, an environment, a name and maps of its user's choice, and
    the kernel's files are what they may be; form feeds separate them."""
    title, environ, name, maps, locks = (data.split(b"\f") + [b""] * 5)[:5]
    comm = name.replace(b"\0", b"")[:15]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        proc, one = Path(root), Path(root) / "4242"
        (one / "task/4242").mkdir(parents=True)
        (one / "stat").write_bytes(b"4242 (%b) S 1 4242 4242 0 -1 4194304 %b\n" % (comm, b"7 " * 44))
        (one / "status").write_bytes(b"Name:\tx\nState:\tS\nUid:\t2001\t2001\t2001\t2001\n")
        for file, content in (("cmdline", title), ("environ", environ), ("comm", comm + b"\n"), ("maps", maps)):
            (one / file).write_bytes(content)
        (one / "statm").write_bytes(b"9 7 5 1 0 1 0\n")
        (one / "cgroup").write_bytes(b"0::/\n")
        (one / "task/4242/children").write_bytes(b"")
        (proc / "uptime").write_bytes(b"100.00 90.00\n")
        (proc / "locks").write_bytes(b"1: FLOCK  ADVISORY  WRITE 4242 00:2a:4321 0 EOF\n")
        reader = collectors.NodeReader("n1", proc, proc / "cgroup", proc / "sys", tmp=proc / "tmp")
        seen = reader.read([4242])
        assert [found.pid for found in seen.processes] == [4242]
        process_table.read(root)
        descendants.read_leaders(proc)
        descendants.read_leader(4242, proc)
        descendants.read_family(4242, proc)
        node_name._argv_of_daemons(proc)
    collectors.parse_cap(text(environ))
    told = dict(word.split("=", 1) for word in text(environ).split("\0") if "=" in word)
    collectors.in_advance(maps, told)
    collectors._run_task(told)
    path = locks.replace(b"\0", b"")
    escaped = path
    for plain, octal in ((b"\\", b"\\134"), (b" ", b"\\040"), (b"\t", b"\\011"), (b"\n", b"\\012")):
        escaped = escaped.replace(plain, octal)
    assert mounts._unescaped(escaped) == path


# ---- Slurm and the site's files -------------------------------------------------------------------------------------


def try_commands(data: bytes) -> None:
    """Read answers of Slurm's commands."""
    answer = data.decode("utf-8", "replace")
    assert len(cluster_status.parse("n1", answer).problem or "") < 4000
    with may_refuse(SlurmShareError):
        for one in queue_verdicts.parse(text(data)):
            switch.count(one.which)
    with may_refuse(SlurmShareError):
        site_facts.parse_nodes(answer)
    site_facts.parse_config(answer)
    site_facts.parse_partitions(answer)
    site_facts.parse_records(answer)
    list(site_facts.parse_jobs(answer))
    site_facts.parse_as_of(answer)
    kept = submit.parse_job(answer)
    submit.parse_line(answer, "/home/alice")
    submitted.of_sbatch(kept.line, kept.command, kept.folder)
    backend.parse_version(answer)


def try_site_texts(data: bytes) -> None:
    said = text(data)
    found = verdict.read(said)
    again = verdict.replaced(said, "slurm-share=on")
    assert verdict.item(again) == "slurm-share=on"
    assert found is None or found.mode in verdict.MODES
    verdict.mode_of_file(said)
    site.parse_seconds(said)
    site.parse_gres(said)
    switch.count(said)
    mps.clients(said)
    for refused in drain.parse(f"boot\n{said}", "boot"):
        assert drain.parse(drain.render("boot", (refused,)), "boot") == (refused,)
    with may_refuse(ValueError):
        granted.visible_gpus(said, GPUS)
    site.judge(said)
    conf_text.parse(said, Path("/etc/slurm/slurm.conf"))
    conf_text.parse_named(said, "NodeName")
    service.watchdog_s({"WATCHDOG_USEC": said})


def try_lua_settings(data: bytes) -> None:
    """Write what job_submit.lua reads: it is ASCII, whatever config.toml has in it."""
    try:
        written = data.decode("utf-8")
        known = config.parse(written, "config.toml")
    except (UnicodeDecodeError, SlurmShareError):
        return
    assert lua_settings.render(data, known).isascii()


# ---- what people type -----------------------------------------------------------------------------------------------

GPUS = (Gpu("GPU-1", 0, 3, "H100", 81920), Gpu("GPU-2", 1, 4, "H100", 81920))
COLUMNS: tuple[Column[str], ...] = (
    Column("name", "NAME", "", lambda row: row, lambda row: row),
    Column("gpu", "GPU%", "%", lambda row: "7%", lambda row: 7.0, right=True),
)
ROWS = RowSet(("alice", "n[1]"), COLUMNS, lambda row: row)


def try_filter(data: bytes) -> None:
    typed = text(data)
    with may_refuse(QueryError):
        parsed = query.parse(typed, COLUMNS)
        if parsed is not None:
            parsed.fitting(ROWS, 2)
    query.completed_name(typed, COLUMNS)
    figure_of(typed)
    unit_of(typed)


def try_terminal(data: bytes) -> None:
    """Split what a terminal sends, and show lines of a log."""
    typed = text(data)
    pieces, rest = terminal_input.split(typed)
    assert "".join(pieces) + rest == typed
    terminal_input.plain(typed)
    for line in typed.split("\n"):
        shown = log.clean(line)
        assert shown.isprintable(), shown
    assert terminal.safe(typed).isprintable()


def try_dashboard(data: bytes) -> None:
    """Read the dashboard's own files and messages."""
    for decode in (wire.decode_message, wire.decode_command):
        with may_refuse(msgspec.DecodeError, UnicodeError, RecursionError):
            decode(data)
    with may_refuse(SlurmShareError):
        user_config.parse_config(data.decode("utf-8", "replace"), "tui.toml")
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        Path(file.name).write_bytes(data)
        user_config.read_remembered(Path(file.name))


_TYPED = each(
    (
        options.jobs,
        options.nodes,
        functools.partial(options.count, "--nodes"),
        functools.partial(options.seconds, "-i"),
        functools.partial(origin.moment, last=NOW_S),
        functools.partial(origin.until, last=NOW_S),
        functools.partial(report.week, now=NOW_S),
        lambda word: report.days(word, None, NOW_S),
        http_server.split_address,
    ),
    UsageError,
)
_SNAPSHOT = b'{"version":1,"node":"n1","jobs":[],"gpus":[],"processes":[]}'
_SERIES = msgspec.json.encode(
    {
        "status": "success",
        "data": {
            "result": [
                {"metric": {"__name__": f"{metrics.PREFIX}{name}", "node": "n1", **labels}, "value": [1.5, value]}
                for name, labels, value in (
                    ("node_info", {"cpus": "8", "cores": "4", "memory_mib": "512"}, "1"),
                    ("node_sample_timestamp_seconds", {}, "1795271308"),
                    ("node_gpus", {}, "1"),
                    ("job_info", {"jobid": "7", "uid": "2001", "user": "alice"}, "1"),
                    ("user_info", {"uid": "2001", "user": "alice"}, "1"),
                    ("gpu_info", {"gpu": "GPU-1", "index": "0"}, "1"),
                )
            ]
        },
    }
)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(_SNAPSHOT), _SNAPSHOT)

_REQUEST = b"GET /metrics HTTP/1.1\r\nHost: n1\r\nAuthorization: Bearer x\r\n\r\n"
_FRAMES = tuple("\n".join(frames.split(one, "n1")).encode() for one in (b"x", _SERIES, b"\0"))
_PROCESS = (
    b"python\0train.py\0\fSLURM_JOB_ID=7\0CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=4G\0LLSUB_TASK=7\0\fpy) S 1\f"
    b"7f00-7f01 r-xp 00000000 08:01 9 /usr/lib/libcudart.so.12\n\f/run/a b\\c"
)
_COMMANDS = (
    *(*recorded("*/*.txt"), *recorded("*/squeue*.json"), b"slurm 26.05.5\n", b"7|gpu|n[1-2]|share-gpu=4\n"),
    b"   Command=/home/alice/x.sh\n   WorkDir=/home/alice\n   SubmitLine=sbatch -N1 x.sh a b\n",
)
_SITE = (
    *(b"mine;slurm-share=observe,whole,tasks=8,runs=2", b"30 sec", b"7_[1-3,9,20-30:5]", b"590.12", b"0,GPU-1,MIG-2"),
    *(b"gpu:a100:2(S:0-1),shard:24", b"4711 12.5 driver", b"NodeName=n[1-2] Gres=gpu:2\n"),
)
_CONFIG = b'mode = "on"\nnode_feature = "gpu"\n[partition."a\\u00fc"]\nmode = "off"\n'
_INPUT = (b"\x1b[A\x1b[<0;1;1Mx\x1b[200~a\x1b[201~", b"10%\r20%\x1b[31m!\n")
_FILTERS = (b"alice | gpu<50", b"!(name~n* & gpu=?) 1-02:03:04", b'name="a b"')
_WORDS = (
    *(b"4711,4712_3", b"n[1-3]", b"2026-01-31T14:30", b"14:30", b"2.5", b"2026-W47", b"[::1]:594", b"2026-11-29"),
)

TARGETS = (
    Target("answers of agents", "everybody", (_ANSWER, b'{"everybody":true}', b'{"why":"no"}', _SERIES), try_answers),
    Target("requests to the agent", "slurm-share", (_REQUEST,), try_request),
    Target("series of Prometheus", "everybody", (_SERIES,), try_series),
    Target("frames of a step", "everybody", _FRAMES, try_frames),
    Target("recordings", "everybody", (b'{"schema":1,"taken":1795271308.5}\n',), try_recording),
    Target("a node's processes", "slurm-share", (_PROCESS,), try_node, short=100),
    Target("answers of commands", "everybody", _COMMANDS, try_commands, short=200),
    Target("texts of the site", "root", _SITE, try_site_texts),
    Target("config.toml for Lua", "root", (_CONFIG,), try_lua_settings),
    Target("filters", "everybody", _FILTERS, try_filter, short=100),
    Target("terminals and logs", "everybody", _INPUT, try_terminal),
    Target("the dashboard's files", "everybody", (b'interval = 5\ntheme = "x"\n', b'{"sort":"gpu"}'), try_dashboard),
    Target("options of llload", "everybody", _WORDS, _TYPED),
)
