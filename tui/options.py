"""The command line of `llload-tui`, and the arguments of llload that come closest to it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from slurm_share.core import numbers
from slurm_share.core.errors import UsageError, shown
from slurm_share.core.parser import Parser
from slurm_share.load import Origin, options
from slurm_share.load import origin as load_origin

from .location import ViewName

PROGRAM = "llload-tui"
INTERVAL_S = 5.0
"""Default interval, that of an agent's samples."""
VIEWS: tuple[ViewName, ...] = ("nodes", "users", "jobs", "gpus", "advice", "queue")
"""The views that need no subject."""
_FORMS: Mapping[str, str] = {"users": "--detail", "jobs": "--detail", "gpus": "--detail", "advice": "--advise"}
"""The option of llload that shows about the same as a view."""
THEMES = "dark, light, high-contrast, colour-blind, mono and ansi"
ADDRESS = "127.0.0.1"
"""Where --serve listens by default: only programs of this host reach it."""
BROWSER_ONLY = (
    "port", "address", "socket", "base_path", "public_url", "allow_actions", "token_file", "tls_certificate", "tls_key",
    "clear_text",
)  # fmt: skip
"""The options that need --serve."""
EXAMPLES = """\
keys
  ? shows all keys; arrows and Enter go to details, Esc goes back, q quits

examples
  llload-tui                          my nodes
  llload-tui --view advice            how many processes to run, and why
  llload-tui --all                    everybody's nodes (operators)
  llload-tui --demo                   a simulated cluster, without Slurm
  llload-tui --replay day.jsonl.gz --at 14:30
  llload-tui --serve                  in a web browser; the command prints a link

Without a terminal llload runs once instead, with the same options.

exit codes
  0 success, 1 failure, 2 invalid options, recording or configuration.
"""


class BrowserOptions(Struct, frozen=True, kw_only=True):
    """The options of `--serve`. None and empty: not given."""

    address: str = ADDRESS
    port: int = 0
    """0: any free one."""
    socket: Path | None = None
    base_path: str = ""
    """Begins with a slash and does not end with one."""
    public_url: str = ""
    allow_actions: bool = False
    token_file: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None


class Options(Struct, frozen=True, kw_only=True):
    """The parsed command line. None and empty: not given."""

    origin: Origin
    """Has an interval if one was given."""
    view: ViewName | None = None
    theme: str = ""
    config: Path | None = None
    readonly: bool = False
    no_color: bool = False
    browser: BrowserOptions | None = None
    """None: without --serve."""


def parser() -> Parser:
    parser = Parser(
        prog=PROGRAM,
        description="Show the load of the nodes that your jobs run on, live: nodes, users, jobs, GPUs, advice.",
        epilog=EXAMPLES,
        allow_abbrev=False,
    )
    parser.add_version()
    options.add_which(parser, nodes="these nodes, such as n[1-3,7]")
    origin = options.add_origin(parser, replay="show a recording of llload --record")
    origin.add_argument("--interval", metavar="S", help=f"seconds between two surveys (default: {INTERVAL_S:g})")
    origin.add_argument(
        "--demo-nodes", metavar="N", help=f"number of nodes of --demo (default: {load_origin.DEMO_NODES})"
    )
    screen = parser.add_argument_group("the screen")
    screen.add_argument("--view", choices=VIEWS, help="the first view (default: the last one used)")
    screen.add_argument("--theme", metavar="NAME", help=THEMES)
    screen.add_argument("--no-color", action="store_true", help="no colours (as with NO_COLOR)")
    screen.add_argument("--readonly", action="store_true", help="switch off cancelling jobs and signalling processes")
    screen.add_argument("--config", metavar="FILE", type=Path, help="configuration (~/.config/slurm-share/tui.toml)")
    browser = parser.add_argument_group("in a web browser")
    browser.add_argument("--serve", action="store_true", help="serve the dashboard to your browser, with a login")
    browser.add_argument("--port", metavar="P", help="port to listen on (default: a free one)")
    browser.add_argument("--address", metavar="A", help=f"address to listen on (default: {ADDRESS}, this host only)")
    browser.add_argument("--socket", metavar="FILE", type=Path, help="listen on a Unix socket instead")
    browser.add_argument("--base-path", metavar="PATH", help="path that a proxy puts first: /node/n1/8080/")
    browser.add_argument("--public-url", metavar="URL", help="the proxy's address: https://ondemand.example.edu")
    browser.add_argument("--allow-actions", action="store_true", help="allow cancelling and signalling in the browser")
    browser.add_argument("--token-file", metavar="FILE", type=Path, help="password for a login form, as Open OnDemand")
    browser.add_argument("--tls-certificate", metavar="FILE", type=Path, help="speak https with this certificate")
    browser.add_argument("--tls-key", metavar="FILE", type=Path, help="its key, if that is in another file")
    browser.add_argument(
        "--clear-text", action="store_true", help="listen on an address of the network without TLS, as proxies need"
    )
    return parser


def checked(arguments: argparse.Namespace) -> Options:
    """Return the checked options. Raises UsageError for an invalid value, or options that exclude one another."""
    is_replay = arguments.replay is not None
    if arguments.at is not None:
        if not is_replay:
            raise UsageError("--at is the time of a recording; name one with --replay FILE")
        load_origin.moment(arguments.at, 0.0)
    if is_replay and (arguments.user is not None or arguments.job is not None or arguments.all):
        raise UsageError("-u, -j and --all choose what is recorded, not what is shown of a recording; -n does")
    if is_replay and arguments.interval is not None:
        raise UsageError("--interval does not apply to a recording; the keys { and } change its speed")
    if arguments.theme == "":
        raise UsageError(f"--theme: there is no theme ''; there are {THEMES}")
    if arguments.demo_nodes is not None and not arguments.demo:
        raise UsageError("--demo-nodes is the size of the demonstration; write --demo as well")
    browser = _browser(arguments)
    return Options(
        origin=Origin(
            user=options.user(arguments.user, demo=arguments.demo),
            everybody=arguments.all,
            nodes=options.nodes(arguments.nodes),
            jobs=options.jobs(arguments.job),
            source=arguments.source or "",
            demo=arguments.demo,
            demo_nodes=options.count("--demo-nodes", arguments.demo_nodes) or load_origin.DEMO_NODES,
            replay=str(arguments.replay) if is_replay else None,
            at=arguments.at,
            waiting=True,
            interval_s=None if arguments.interval is None else options.seconds("--interval", arguments.interval),
        ),
        view=arguments.view,
        theme=arguments.theme or "",
        config=arguments.config,
        readonly=arguments.readonly,
        no_color=arguments.no_color,
        browser=browser,
    )


def _browser(arguments: argparse.Namespace) -> BrowserOptions | None:
    if not arguments.serve:
        for name in BROWSER_ONLY:
            if getattr(arguments, name) not in (None, False):
                raise UsageError(f"--{name.replace('_', '-')} is for the dashboard in a browser; write --serve as well")
        return None
    from .browser import addresses

    address, port = arguments.address or ADDRESS, numbers.whole(arguments.port or "0", 65535)
    if port is None:
        raise UsageError(f"--port {shown(arguments.port)} is no port from 1 to 65535")
    if arguments.socket is not None and (arguments.address is not None or arguments.port is not None):
        raise UsageError("--socket takes the place of --address and --port; leave them out")
    is_near = arguments.socket is not None or addresses.is_loopback(address)
    if arguments.tls_key is not None and arguments.tls_certificate is None:
        raise UsageError("--tls-key is the key of a certificate; name that with --tls-certificate")
    if not is_near and arguments.tls_certificate is None and not arguments.clear_text:
        raise UsageError(
            f"on {shown(address)} everybody on the network can read the login and the screen on their way; write "
            "--tls-certificate FILE, or --clear-text if only a proxy in a network that you trust connects, or leave "
            "--address out and use ssh -L"
        )
    return BrowserOptions(
        address=address,
        port=port,
        socket=arguments.socket,
        base_path=addresses.base_path(arguments.base_path or ""),
        public_url=addresses.public_url(arguments.public_url) if arguments.public_url is not None else "",
        allow_actions=arguments.allow_actions,
        token_file=arguments.token_file,
        tls_certificate=arguments.tls_certificate,
        tls_key=arguments.tls_key,
    )


def llload_arguments(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments with which `llload` prints once what was asked for."""
    found = [_FORMS.get(arguments.view or "", "-g")]
    for option in ("user", "job", "nodes", "source", "replay", "at", "demo_nodes"):
        value = getattr(arguments, option)
        if value is not None:
            found.append(f"--{option.replace('_', '-')}={value}")
    return found + [
        f"--{option.replace('_', '-')}" for option in ("all", "demo", "no_color") if getattr(arguments, option)
    ]
