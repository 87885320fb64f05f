"""The dashboard's themes. None depends on hue alone: letters, words, bold and reverse carry every meaning too.

Figures are marked with these roles: `accent` low, `warning` high, `error` over, `success` fine; text has `foreground`
and `text-muted`. Each has a contrast of 4.5 to 1 on `background`, `surface` and `panel`, in high-contrast 7 to 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from textual.theme import BUILTIN_THEMES, Theme

DARK, LIGHT, HIGH_CONTRAST, COLOUR_BLIND, MONO, ANSI = "dark", "light", "high-contrast", "colour-blind", "mono", "ansi"


def _texts(*, muted: str, cursor: tuple[str, str], **colours: str) -> dict[str, str]:
    """Return variables that Textual would otherwise derive with too little contrast."""
    return {
        "text-muted": muted,
        "foreground-muted": muted,
        "text-disabled": muted,
        "foreground-disabled": muted,
        "block-cursor-foreground": cursor[0],
        "block-cursor-background": cursor[1],
        "block-cursor-text-style": "bold",
        "footer-key-foreground": colours["accent"],
        "button-color-foreground": cursor[0],
        **{f"text-{role}": colour for role, colour in colours.items()},
    }


def _theme(
    name: str, *, dark: bool, ground: tuple[str, str, str], text_colours: tuple[str, str], **colours: str
) -> Theme:
    """Return a theme. `ground`: background, surface, panel; `text_colours`: foreground, muted."""
    background, surface, panel = ground
    foreground, muted = text_colours
    return Theme(
        name=name,
        dark=dark,
        background=background,
        surface=surface,
        panel=panel,
        foreground=foreground,
        primary=colours["primary"],
        secondary=colours["secondary"],
        accent=colours["accent"],
        warning=colours["warning"],
        error=colours["error"],
        success=colours["success"],
        variables=_texts(muted=muted, cursor=(background, colours["primary"]), **colours),
    )


def _mono() -> Theme:
    own = "ansi_default"
    bare = Theme(
        name=MONO,
        ansi=True,
        dark=True,
        primary=own,
        secondary=own,
        warning=own,
        error=own,
        success=own,
        accent=own,
        foreground=own,
        background=own,
        surface=own,
        panel=own,
        boost=own,
    )
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
    _theme(
        DARK,
        dark=True,
        ground=("#14171a", "#1b1f24", "#242a31"),
        text_colours=("#e4e7ea", "#a7b0ba"),
        primary="#7cb7ff",
        secondary="#9fb4cc",
        accent="#6fd3e8",
        warning="#f2c14e",
        error="#ff8a80",
        success="#86d993",
    ),
    _theme(
        LIGHT,
        dark=False,
        ground=("#fafafa", "#f1f2f4", "#e6e9ed"),
        text_colours=("#1c2126", "#525b66"),
        primary="#0a58a8",
        secondary="#43566b",
        accent="#006a7d",
        warning="#7d5300",
        error="#b3261e",
        success="#1a6b30",
    ),
    _theme(
        HIGH_CONTRAST,
        dark=True,
        ground=("#000000", "#000000", "#1a1a1a"),
        text_colours=("#ffffff", "#dddddd"),
        primary="#ffff00",
        secondary="#ffffff",
        accent="#00ffff",
        warning="#ffd000",
        error="#ffa0a0",
        success="#80ff80",
    ),
    # Okabe and Ito's colours: distinct with every kind of colour vision, and in lightness too.
    _theme(
        COLOUR_BLIND,
        dark=True,
        ground=("#101317", "#171b20", "#20262d"),
        text_colours=("#eceff2", "#aab4be"),
        primary="#56b4e9",
        secondary="#a9b7c4",
        accent="#56b4e9",
        warning="#f0e442",
        error="#e8701a",
        success="#2fc59b",
    ),
    # No colour at all: the terminal's own two, with bold, reverse, underline and dim.
    _mono(),
    # The terminal's own sixteen.
    replace(BUILTIN_THEMES["ansi-dark"], name=ANSI, accent="ansi_bright_cyan"),
)  # fmt: skip

NAMES: tuple[str, ...] = tuple(theme.name for theme in THEMES)
_OTHER_NAMES = {
    "color-blind": COLOUR_BLIND,
    "colorblind": COLOUR_BLIND,
    "colourblind": COLOUR_BLIND,
    "contrast": HIGH_CONTRAST,
}


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
    """Return the next theme."""
    return NAMES[(NAMES.index(name) + 1) % len(NAMES)] if name in NAMES else NAMES[0]
