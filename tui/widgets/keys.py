"""The last line: the keys that do something here, made from the bindings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .. import keymap
from .line import Line, Piece, width_of

ALL_KEYS = "all keys"


class Keys(Line):
    """Click one, or press it. Where it is narrow those are left out that matter least."""

    def __init__(self, overrides: Mapping[str, str], does: Callable[[keymap.Key], bool]) -> None:
        """`does`: whether a key does something where one is."""
        super().__init__()
        self.overrides, self.does = overrides, does

    def lay_out(self, width: int) -> Sequence[Piece]:
        """By their place in the list, as many as there is room for; where some are left out, the way to all of them
        is said."""
        shown: list[keymap.Key] = sorted(
            (key for key in keymap.KEYS if key.footer and self.does(key)), key=lambda key: key.footer
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
            found += [Piece(f" {keymap.sign(first)}", "strong", key.id), Piece(f" {label} ", "", key.id)]
        return found
