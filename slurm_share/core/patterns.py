"""Compile regular expressions when they are first used: a hook loads many and needs few."""

from __future__ import annotations

TYPE_CHECKING = False  # as mypy knows it, without the import of `typing`
if TYPE_CHECKING:
    import re
    from typing import Any, AnyStr


class _Lazy:
    """A pattern that is compiled when one of its methods is first used."""

    def __init__(self, text: str | bytes) -> None:
        self._text = text

    def __getattr__(self, name: str) -> Any:
        import re

        compiled = re.compile(self._text)
        for method in ("fullmatch", "match", "search"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def pattern(text: AnyStr) -> re.Pattern[AnyStr]:
    """Return the pattern. Flags are written into it: `(?a)`, `(?i)`, `(?m)`."""
    return _Lazy(text)  # type: ignore[return-value]
