"""Every theme is readable by WCAG's contrast, and the mono theme has no hue."""

from __future__ import annotations

import itertools

import pytest
from slurm_share_tui import themes
from textual.color import Color
from textual.theme import Theme

WORDS = (
    "foreground", "text-muted", "text-primary", "text-secondary", "text-accent", "text-warning", "text-error",
    "text-success", "foreground-muted", "footer-key-foreground", "primary", "accent", "warning", "error", "success",
)  # fmt: skip
GROUNDS = ("background", "surface", "panel")
LEAST, LEAST_HIGH = 4.5, 7.0
"""WCAG 2, levels AA and AAA."""
COLOURED = [theme for theme in themes.THEMES if not theme.ansi]


def luminance(colour: Color) -> float:
    """Return WCAG's relative luminance."""

    def linear(channel: int) -> float:
        share = channel / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(colour.r) + 0.7152 * linear(colour.g) + 0.0722 * linear(colour.b)


def contrast(words: Color, ground: Color) -> float:
    """Return the contrast of two colours, 1 to 21."""
    light, dark = sorted((luminance(ground + words), luminance(ground)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def colours(theme: Theme) -> dict[str, str]:
    """Return a theme's colours as `App.get_css_variables` does."""
    return {**theme.to_color_system().generate(), **theme.variables}


def least(theme: Theme) -> float:
    """Return the promised contrast of a theme."""
    return LEAST_HIGH if theme.name == themes.HIGH_CONTRAST else LEAST


LIT = (
    ("block-cursor-foreground", "block-cursor-background"), ("background", "primary"), ("background", "warning"),
    ("surface", "text-error"), ("surface", "text-warning"), ("input-cursor-foreground", "input-cursor-background"),
)  # fmt: skip
"""Text and ground of what is lit."""


@pytest.mark.parametrize("theme", COLOURED, ids=lambda theme: theme.name)
def test_all_words_can_be_read_on_every_ground_and_what_is_lit_too(theme: Theme) -> None:
    found = colours(theme)
    pairs = [*itertools.product(WORDS, GROUNDS), *LIT]
    poor = {
        pair: round(value, 2)
        for pair in pairs
        if (value := contrast(*(Color.parse(found[name]) for name in pair))) < least(theme)
    }
    assert poor == {}


def test_marks_of_the_colour_blind_theme_differ_in_lightness() -> None:
    found = colours(next(theme for theme in themes.THEMES if theme.name == themes.COLOUR_BLIND))
    steps = sorted(luminance(Color.parse(found[role])) for role in ("accent", "warning", "error"))
    assert all(higher - lower > 0.1 for lower, higher in itertools.pairwise(steps))


def test_mono_has_no_colour_at_all() -> None:
    mono = next(theme for theme in themes.THEMES if theme.name == themes.MONO)
    hues = {
        name: value
        for name, value in colours(mono).items()
        if "ansi_" in value and not value.startswith("ansi_default")
    }
    assert hues == {}


def test_what_suits_a_terminal() -> None:
    assert themes.suited({"NO_COLOR": "1"}, "truecolor") == themes.MONO
    assert themes.suited({"NO_COLOR": ""}, "truecolor") == themes.DARK
    assert themes.suited({}, "standard") == themes.ANSI
    assert themes.suited({}, None) == themes.ANSI
    assert themes.suited({}, "256") == themes.DARK


def test_the_next_theme_comes_round() -> None:
    name = themes.DARK
    for _ in themes.NAMES:
        name = themes.after(name)
    assert name == themes.DARK
    assert themes.after("nord") == themes.NAMES[0]


def test_a_theme_is_known_by_its_spellings() -> None:
    assert themes.known("color-blind") == themes.COLOUR_BLIND
    assert themes.known("light") == themes.LIGHT
    assert themes.known("pink") == ""
