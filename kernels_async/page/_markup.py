"""HTML by construction: what is not known to be HTML is escaped."""

from __future__ import annotations

import re

from .._diagnostics import printable

NOTHING = "\N{EN DASH}"
Content = str | int | float | None
_PLAIN = re.compile(r"[\w !#$%()*+,\-./:;=?@\[\]^`{|}~]*", re.ASCII).fullmatch
_SPECIAL = re.compile("[&<>\"']")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}


class Html(str):
    """Text that is HTML already. Only this module and the page's templates make it."""

    __slots__ = ()


def html(*content: Content) -> Html:
    """All of it as HTML: texts escaped, control characters made visible."""
    return Html("".join(map(_html, content)))


def _html(content: Content) -> str:
    if isinstance(content, Html):
        return content
    if content is None:
        return ""
    text = str(content)
    if _PLAIN(text):
        return text
    return _SPECIAL.sub(lambda found: _ENTITIES[found[0]], printable(text))


def tag(name: str, *content: Content, **attributes: Content | bool) -> Html:
    """An element; `class_` is `class`, `data_k` is `data-k`, `True` has no value."""
    named = []
    for key, value in attributes.items():
        attribute = key.rstrip("_").replace("_", "-")
        if value is True:
            named.append(f" {attribute}")
        elif value is not None and value is not False:
            named.append(f' {attribute}="{_html(value)}"')
    return Html(f"<{name}{''.join(named)}>{html(*content)}</{name}>")


def code(text: str) -> Html:
    """A piece of code in a line of text."""
    return tag("code", text)


def seconds(value: float | None) -> str:
    """A duration, as one says it."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0 s"
    if value >= 120:
        minutes, rest = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
    if value >= 1:
        return f"{value:.3g} s" if value < 99.5 else f"{value:.0f} s"
    milliseconds = value * 1000
    if milliseconds >= 99.5:
        return f"{milliseconds:.0f} ms"
    return f"{milliseconds:.2g} ms" if milliseconds >= 0.1 else f"{value * 1e6:.0f} µs"


def size(value: int | None) -> str:
    """A number of bytes, as one says it."""
    if value is None:
        return NOTHING
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value} B"


def percent(share: float | None) -> str:
    """A share of one, without decimals."""
    return NOTHING if share is None else f"{share * 100:.0f} %"


def counted(number: int, thing: str, several: str = "") -> str:
    """`1 kernel`, `2 kernels`."""
    return f"{number:,} {thing if number == 1 else several or thing + 's'}"
