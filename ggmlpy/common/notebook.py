"""Objects as small tables of HTML, as notebooks show them: readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

_MOST = 30  # rows; the rest is a number


def table(title: str, rows: Iterable[tuple[str, str]], text: str = "") -> str:
    """A heading, rows of a name and a value, and below them `text` as it is. All are escaped.

    Only the page's own colours are used, so that they fit any theme.
    """
    listed = list(rows)
    cells = [
        f'<tr><th style="text-align:left;font-weight:600;opacity:.75">{escape(name.strip())}</th>'
        f'<td style="text-align:left">{escape(value)}</td></tr>'
        for name, value in listed[:_MOST]
    ]
    if len(listed) > _MOST:
        cells.append(f"<tr><td></td><td>… {len(listed) - _MOST} more</td></tr>")
    below = f'<pre style="margin:.4em 0 0">{escape(text)}</pre>' if text else ""
    return (
        '<div style="display:inline-block;border:1px solid;border-color:rgba(128,128,128,.4);'
        'border-radius:4px;padding:.4em .7em;max-width:100%;overflow-x:auto">'
        f"<b>{escape(title)}</b><table>{''.join(cells)}</table>{below}</div>"
    )
