"""The lines of the screen above and below the view: pieces of text, some of which can be clicked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.text import Text
from textual import events
from textual.message import Message
from textual.widget import Widget

from slurm_share.core import terminal
from slurm_share.load import notes
from slurm_share.load import text as load_text

from .. import keymap
from ..location import TITLES, Location, ViewName
from ..picture import SurveyPicture

TABS: tuple[ViewName, ...] = ("nodes", "users", "jobs", "gpus", "node", "advice", "queue")
PARENT: dict[ViewName, ViewName] = {"gpu": "gpus", "process": "gpus", "job": "jobs"}
"""The tab that is lit for a view without one."""
PROGRAM = "llload-tui"
BETWEEN, MORE = " > ", "… > "
NAME_MOST = 40
"""Most columns of a name in the path."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text of a line, never markup."""

    text: str
    kind: str = ""
    """Its style: on (selected), strong, dim or problem; empty: plain."""
    target: str = ""
    """The id that a click on it sends; empty: a click does nothing."""


class Line(Widget):
    """A line of the screen. Subclasses implement `lay_out`."""

    COMPONENT_CLASSES = {"line--on", "line--strong", "line--dim", "line--problem"}  # noqa: RUF012
    DEFAULT_CSS = """
    Line {
        height: 1;
        .line--on { text-style: bold reverse; }
        .line--strong { text-style: bold; }
        .line--dim { color: $text-muted; }
        .line--problem { text-style: bold; color: $text-error; }
    }
    """
    ALLOW_SELECT = False

    class Clicked(Message):
        """Sent when a piece with a target was clicked."""

        def __init__(self, line: Line, target: str) -> None:
            self.line, self.target = line, target
            super().__init__()

    def lay_out(self, width: int) -> Sequence[TextPiece]:
        """Return the pieces for this width; a longer line is cut."""
        raise NotImplementedError

    def pieces(self) -> list[TextPiece]:
        """Return the present pieces, cut to the width."""
        left, found = self.size.width, []
        for piece in self.lay_out(left):
            text = load_text.cut(terminal.safe(piece.text), left)
            if text:
                found.append(TextPiece(text, piece.kind, piece.target))
            left -= cell_len(text)
            if left <= 0:
                break
        return found

    def render(self) -> Text:
        """Return the line as rich text, because textual's own styles (`get_visual_style`) ignore `reverse`."""
        text = Text(no_wrap=True, end="")
        for piece in self.pieces():
            text.append(piece.text, self.get_component_rich_style(f"line--{piece.kind}") if piece.kind else None)
        return text

    def on_click(self, event: events.Click) -> None:
        """Send `Clicked` with the target of the piece under the mouse."""
        end = 0
        for piece in self.pieces():
            end += cell_len(piece.text)
            if event.x < end:
                if piece.target:
                    event.stop()
                    self.post_message(self.Clicked(self, piece.target))
                return


def width_of(pieces: Sequence[TextPiece]) -> int:
    return sum(cell_len(terminal.safe(piece.text)) for piece in pieces)


def joined(pieces: Sequence[TextPiece], between: TextPiece) -> list[TextPiece]:
    """Return the pieces with `between` between them."""
    return [one for piece in pieces for one in (between, piece)][1:]


class Banner(Line):
    """The first line of the screen while figures are simulated, so that they are not taken for measurements."""

    DEFAULT_CSS = "Banner { display: none; text-style: bold reverse; }"
    text = ""

    def show(self, picture: SurveyPicture) -> None:
        """Show what is simulated in this survey, as llload says it."""
        text = notes.banner(picture.survey) or (notes.SIMULATED if picture.is_simulated else "")
        if text != self.text:
            self.text = text
            self.display = bool(text)
            self.refresh()

    def lay_out(self, width: int) -> Sequence[TextPiece]:
        return [TextPiece(self.text.center(width))]


class Tabs(Line):
    """The views, which can be clicked or chosen by key, then program, cluster and user."""

    def __init__(self, keys: Mapping[ViewName, str]) -> None:
        """`keys`: the key of each view, as text."""
        super().__init__()
        self.keys = keys
        self.at: ViewName = "nodes"
        self.who: tuple[str, ...] = (PROGRAM,)
        """Program, cluster, user; the first are left out where it is narrow."""

    def show(self, view: ViewName, picture: SurveyPicture | None) -> None:
        """Show this view as the current one, and whose survey this is."""
        survey = None if picture is None else picture.survey
        who = (PROGRAM, survey.cluster, "all users" if survey.everybody else survey.user) if survey else (PROGRAM,)
        at = PARENT.get(view, view)
        if (at, who) != (self.at, self.who):
            self.at, self.who = at, who
            self.refresh()

    def lay_out(self, width: int) -> Sequence[TextPiece]:
        """Return all tabs, in a narrow terminal only the keys and the name of the current one; then the cluster and the
        user, as far as they fit."""
        tabs = [
            TextPiece(f" {self.keys[view]} {TITLES[view]} ", "on" if view == self.at else "", view) for view in TABS
        ]
        if width_of(tabs) > width:
            tabs = [
                tab if tab.kind else TextPiece(f" {self.keys[view]}", "", view)
                for tab, view in zip(tabs, TABS, strict=True)
            ]
        for first in range(len(self.who)):
            who = TextPiece("  ".join(filter(None, self.who[first:])) + " ", "dim")
            gap = width - width_of([*tabs, who])
            if gap > 1:
                return [*tabs, TextPiece(" " * gap), who]
        return tabs


class Crumbs(Line):
    """The path to the current location; a click on a part goes back to it."""

    path: tuple[Location, ...] = ()

    def show(self, path: tuple[Location, ...]) -> None:
        if path != self.path:
            self.path = path
            self.refresh()

    def lay_out(self, width: int) -> Sequence[TextPiece]:
        """Return the path; the first names are left out where it does not fit."""
        texts = map(crumb_text, self.path, (None, *self.path))
        names = [TextPiece(terminal.shortened(text, NAME_MOST), "", str(at)) for at, text in enumerate(texts)]
        names[-1:] = [replace(one, kind="strong") for one in names[-1:]]
        for first in range(len(names)):
            shown = [
                TextPiece(" "),
                TextPiece(MORE if first else "", "dim"),
                *joined(names[first:], TextPiece(BETWEEN, "dim")),
            ]
            if width_of(shown) <= width or first == len(names) - 1:
                return shown
        return []


def crumb_text(location: Location, before: Location | None = None) -> str:
    """Return the name of a location, for a GPU and a process with the node, unless `before` says it."""
    node = f"{location.node} " if location.node and (before is None or before.node != location.node) else ""
    if location.process is not None:
        return f"{node}process {location.process.pid}"
    if location.gpu:
        return node + (location.gpu_name or location.gpu)
    title = TITLES[location.view]
    thing = location.node or location.job_name or str(location.job or "") or location.user
    if location.view == "advice":
        return f"{title} {thing}".strip()
    return thing or title


class AlertLine(Line):
    """The banner of alerts: the newest, how many there are, and the key of their list. Hidden while there are none."""

    DEFAULT_CSS = "AlertLine { display: none; } AlertLine.-some { display: block; }"
    texts: tuple[str, ...] = ()
    key = ""

    def show(self, texts: tuple[str, ...], key: str) -> None:
        """Show these alerts, the newest first. `key`: that opens their list, as text."""
        if (texts, key) != (self.texts, self.key):
            self.texts, self.key = texts, key
            self.set_class(bool(texts), "-some")
            self.refresh()

    def lay_out(self, width: int) -> Sequence[TextPiece]:
        if not self.texts:
            return []
        more = f" +{len(self.texts) - 1} more" if len(self.texts) > 1 else ""
        tail = f"{more}  {self.key} list, silence "
        room = max(8, width - cell_len(tail) - 3)
        said = load_text.cut(terminal.safe(self.texts[0]), room)
        gap = " " * max(0, room - cell_len(said))
        return [TextPiece(f" ! {said}{gap}", "problem", "alerts"), TextPiece(tail, "strong", "alerts")]


class Keys(Line):
    """The last line of the screen: the keys that do something here, which can be clicked too. Where it is narrow, the
    least important are left out."""

    def __init__(self, overrides: Mapping[str, str], is_available: Callable[[keymap.Key], bool]) -> None:
        """`is_available`: returns whether a key does something here."""
        super().__init__()
        self.overrides, self.is_available = overrides, is_available

    def lay_out(self, width: int) -> Sequence[TextPiece]:
        """Return as many keys as fit, in their order; if some are left out, the help key is labelled `all keys`."""
        there = (key for key in keymap.KEYS if key.footer and self.is_available(key))
        shown = sorted(there, key=lambda key: key.footer)
        found = self._pieces(shown)
        while len(shown) > 1 and width_of(found) > width:
            del shown[-2 if shown[-1].id == "help" else -1]
            found = self._pieces(shown, "all keys")
        return found

    def _pieces(self, keys: Sequence[keymap.Key], of_help: str = "") -> list[TextPiece]:
        found: list[TextPiece] = []
        for key in keys:
            first = keymap.keys_of(key.id, self.overrides)[0]
            label = of_help if of_help and key.id == "help" else key.label
            found += [TextPiece(f" {keymap.key_text(first)}", "strong", key.id), TextPiece(f" {label} ", "", key.id)]
        return found
