"""Calm palettes. Text keeps a contrast of at least 4.5 to 1; what colours say is always said in words or glyphs too."""

from __future__ import annotations

from textual.theme import Theme

DARK = Theme(
    name="sapo-dark",
    primary="#7aa2c9",
    secondary="#b59ac9",
    accent="#e0b870",
    success="#8fbf8f",
    warning="#e0b870",
    error="#dc8580",
    foreground="#d5dae3",
    background="#14171d",
    surface="#191d24",
    panel="#222831",
    dark=True,
    variables={
        "border": "#3a4352",
        "muted": "#8d97a8",
        "chart-local": "#79c0b5",
        "chart-external": "#e0a878",
        "chart-third": "#a8a0dc",
    },
)
LIGHT = Theme(
    name="sapo-light",
    primary="#2f5f8a",
    secondary="#70508a",
    accent="#8a5a00",
    success="#2c6e3a",
    warning="#8a5a00",
    error="#a3322c",
    foreground="#23272e",
    background="#f7f5f0",
    surface="#f1eee7",
    panel="#e6e2d8",
    dark=False,
    variables={
        "border": "#b9b2a3",
        "muted": "#68645c",
        "chart-local": "#00695f",
        "chart-external": "#9a4a12",
        "chart-third": "#574b9e",
    },
)
CONTRAST = Theme(
    name="sapo-contrast",
    primary="#ffffff",
    secondary="#ffffff",
    accent="#ffff00",
    success="#00ff00",
    warning="#ffff00",
    error="#ff8080",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#1a1a1a",
    dark=True,
    variables={
        "border": "#ffffff",
        "muted": "#d0d0d0",
        "chart-local": "#00ffff",
        "chart-external": "#ffff00",
        "chart-third": "#ff9cff",
    },
)
THEMES = (DARK, LIGHT, CONTRAST)
DEFAULTS = {
    "muted": "ansi_bright_black",
    "chart-local": "ansi_cyan",
    "chart-external": "ansi_yellow",
    "chart-third": "ansi_magenta",
}
"""For Textual's own themes (ansi ones too), which do not know our variables."""
