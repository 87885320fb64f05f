"""The dashboard's themes. None depends on hue alone: letters, words, bold and reverse carry every meaning too.

Figures are marked with these roles: `accent` a hint, `warning` what needs attention, `error` what is wrong now and
nothing else, `success` fine; text has `foreground` and `text-muted`. Each has a contrast of 4.5 to 1 on `background`,
`surface` and `panel`, in high-contrast 7 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from textual.theme import BUILTIN_THEMES, Theme

DARK, LIGHT, HIGH_CONTRAST, COLOUR_BLIND, MONO, ANSI = "dark", "light", "high-contrast", "colour-blind", "mono", "ansi"


_ROLES = (
    "background", "surface", "panel", "foreground", "muted",
    "primary", "secondary", "accent", "warning", "error", "success",
)  # fmt: skip
"""Roles of the colours of a theme. Textual would derive the text of each from them with too little contrast."""


def _theme(name: str, colours: str, *, dark: bool = True) -> Theme:
    """Return a theme. `colours`: those of _ROLES in their order."""
    of = dict(zip(_ROLES, colours.split(), strict=True))
    return Theme(
        name=name,
        dark=dark,
        variables={
            **{f"{kind}-{role}": of["muted"] for kind in ("text", "foreground") for role in ("muted", "disabled")},
            "block-cursor-foreground": of["background"],
            "block-cursor-background": of["primary"],
            "block-cursor-text-style": "bold",
            "footer-key-foreground": of["accent"],
            "button-color-foreground": of["background"],
            **{f"text-{role}": of[role] for role in _ROLES[5:]},
        },
        **{role: colour for role, colour in of.items() if role != "muted"},  # type: ignore[arg-type]
    )


def _mono() -> Theme:
    own = "ansi_default"
    roles = ("primary", "secondary", "warning", "error", "success", "accent", "foreground", "background", "surface")
    bare = Theme(name=MONO, ansi=True, dark=True, **dict.fromkeys((*roles, "panel", "boost"), own))  # type: ignore[arg-type]
    mixed = bare.to_color_system().generate()
    return replace(
        bare,
        variables={
            **{name: own for name, value in mixed.items() if value.startswith("ansi_") and own not in value},
            "ansi-background": own,
            "ansi-foreground": own,
            "block-cursor-text-style": "bold reverse",
            "block-cursor-blurred-text-style": "underline",
            "input-cursor-text-style": "reverse",
            "button-focus-text-style": "bold reverse",
        },
    )


THEMES: tuple[Theme, ...] = (
    _theme(DARK, """
        #14171a #1b1f24 #242a31 #e4e7ea #a7b0ba
        #7cb7ff #9fb4cc #6fd3e8 #f2c14e #ff8a80 #86d993"""),
    _theme(LIGHT, """
        #fafafa #f1f2f4 #e6e9ed #1c2126 #525b66
        #0a58a8 #43566b #006a7d #7d5300 #b3261e #1a6b30""", dark=False),
    _theme(HIGH_CONTRAST, """
        #000000 #000000 #1a1a1a #ffffff #dddddd
        #ffff00 #ffffff #00ffff #ffd000 #ffa0a0 #80ff80"""),
    # Okabe and Ito's colours: distinct with every kind of colour vision, and in lightness too.
    _theme(COLOUR_BLIND, """
        #101317 #171b20 #20262d #eceff2 #aab4be
        #56b4e9 #a9b7c4 #56b4e9 #f0e442 #e8701a #2fc59b"""),
    # No colour at all: the terminal's own two, with bold, reverse, underline and dim.
    _mono(),
    # The terminal's own sixteen.
    replace(BUILTIN_THEMES["ansi-dark"], name=ANSI, accent="ansi_bright_cyan"),
)  # fmt: skip

NAMES: tuple[str, ...] = tuple(theme.name for theme in THEMES)
_OTHER_NAMES = {
    **dict.fromkeys(("color-blind", "colorblind", "colourblind"), COLOUR_BLIND), "contrast": HIGH_CONTRAST,
}  # fmt: skip


def known(name: str) -> str:
    """Return the theme's full name; empty: there is no such theme."""
    return name if name in NAMES else _OTHER_NAMES.get(name, "")


def suited(environ: Mapping[str, str], color_system: str | None) -> str:
    """Return the default theme of a terminal. `color_system`: rich's name; standard is 16 colours."""
    if is_colourless(environ):
        return MONO
    return ANSI if color_system in ("standard", None) else DARK


def is_colourless(environ: Mapping[str, str]) -> bool:
    """Return whether NO_COLOR is set and not empty (no-color.org)."""
    return bool(environ.get("NO_COLOR"))


def after(name: str) -> str:
    """Return the theme that follows in NAMES."""
    return NAMES[(NAMES.index(name) + 1) % len(NAMES)] if name in NAMES else NAMES[0]
