"""The last line of the screen: the keys that do something here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .. import keymap
from .line import Line, Piece, width_of

ALL_KEYS = "all keys"


class Keys(Line):
    """The keys, which can be clicked too. Where the line is narrow, the least important are left out."""

    def __init__(self, overrides: Mapping[str, str], is_available: Callable[[keymap.Key], bool]) -> None:
        """`is_available`: returns whether a key does something here."""
        super().__init__()
        self.overrides, self.is_available = overrides, is_available

    def lay_out(self, width: int) -> Sequence[Piece]:
        """Return as many keys as fit, in their order; if some are left out, the help key is labelled `all keys`."""
        shown: list[keymap.Key] = sorted(
            (key for key in keymap.KEYS if key.footer and self.is_available(key)), key=lambda key: key.footer
        )
        found = self._pieces(shown)
        while len(shown) > 1 and width_of(found) > width:
            del shown[-2 if shown[-1].id == "help" else -1]
            found = self._pieces(shown, ALL_KEYS)
        return found

    def _pieces(self, keys: Sequence[keymap.Key], of_help: str = "") -> list[Piece]:
        found: list[Piece] = []
        for key in keys:
            first = keymap.keys_of(key.id, self.overrides)[0]
            label = of_help if of_help and key.id == "help" else key.label
            found += [Piece(f" {keymap.key_text(first)}", "strong", key.id), Piece(f" {label} ", "", key.id)]
        return found
