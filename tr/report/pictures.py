"""The files of a plot and how Markdown shows them."""

from tr.report.plot import SUFFIX, Plot, text
from tr.report.theme import DARK, LIGHT, THEMES

Files = dict[str, bytes]


def quick(name: str, plot: Plot) -> Files:
    """One picture and its data: what every run leaves."""
    from tr.report.draw import picture

    return {f"{name}.png": picture(plot, LIGHT, "png"), f"{name}{SUFFIX}": text(plot).encode()}


def full(name: str, plot: Plot, kinds: tuple[str, ...] = ("svg", "png")) -> Files:
    """Light and dark pictures and their data."""
    from tr.report.draw import picture

    drawn = {
        f"{name}-{theme.name}.{kind}": picture(plot, theme, kind)
        for theme in THEMES
        for kind in kinds
    }
    return {**drawn, f"{name}{SUFFIX}": text(plot).encode()}


def quick_image(name: str, plot: Plot) -> str:
    return f"![{plot.title}]({name}.png)"


def full_image(name: str, plot: Plot, width: str = "") -> str:
    """The picture that suits the reader's page; `width` as HTML takes it."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{name}-{DARK.name}.svg">'
    wide = f' width="{width}"' if width else ""
    light = f'<img alt="{plot.title}" src="{name}-{LIGHT.name}.svg"{wide}>'
    return f"<picture>{dark}{light}</picture>"
