"""Draws samples trained and bytes in flight over time, as SVG: two plots with one axis of time.

All axes start at zero and have round labels.
"""

import math
import pathlib
from html import escape

WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM, GAP = 76, 20, 64, 48, 26
#: Approximate number of labels of an axis.
TICKS = 4


def draw(path, curve, title):
    """Write the picture of a curve of (seconds, trained, bytes in flight, samples in flight)."""
    times = ticks(max(curve[-1][0], 1e-9))
    panels = [
        ("samples trained", "#1f6f8b", "none", [(it[0], it[1]) for it in curve]),
        ("MiB in flight", "#c8553d", "6 3", [(it[0], it[2] / (1 << 20)) for it in curve]),
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="24" text-anchor="middle" font-size="15">{escape(title)}</text>',
    ]
    height = (HEIGHT - TOP - BOTTOM - GAP) / len(panels)
    for at, (name, color, dashes, points) in enumerate(panels):
        top = TOP + at * (height + GAP)
        parts += panel(points, times, top, height, f'stroke="{color}" stroke-dasharray="{dashes}"')
        parts.append(middle_label(name, top + height / 2, color))
        x = LEFT + 170 * at
        parts.append(f'<path d="M{x} 44h34" stroke="{color}" stroke-dasharray="{dashes}" stroke-width="2"/>')
        parts.append(f'<text x="{x + 42}" y="48">{name}</text>')
    bottom = HEIGHT - BOTTOM
    for time in times:
        x = place(time, times[-1])
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{short(time)}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 10}" text-anchor="middle">seconds</text>')
    pathlib.Path(path).write_text("\n".join([*parts, "</svg>\n"]))


def panel(points, times, top, height, style):
    """A grid with round labels, and a line."""
    values = ticks(max(value for _, value in points) or 1)
    bottom, right = top + height, WIDTH - RIGHT
    parts = []
    for value in values:
        y = bottom - height * value / values[-1]
        parts.append(f'<path d="M{LEFT} {y:.1f}H{right}" stroke="#ddd"/>')
        at = f'x="{LEFT - 6}" y="{y:.1f}" text-anchor="end" dominant-baseline="middle"'
        parts.append(f"<text {at}>{short(value)}</text>")
    for time in times:
        parts.append(f'<path d="M{place(time, times[-1]):.1f} {bottom}v4" stroke="#888"/>')
    line = " ".join(
        f"{place(second, times[-1]):.1f},{bottom - height * value / values[-1]:.1f}"
        for second, value in points
    )
    parts.append(f'<polyline points="{line}" fill="none" stroke-width="1.8" {style}/>')
    return parts


def middle_label(name, y, color):
    """The name of a vertical axis."""
    turn = f"translate(16 {y:.1f}) rotate(-90)"
    return f'<text transform="{turn}" text-anchor="middle" fill="{color}">{name}</text>'


def ticks(most):
    """Round labels from zero to at least this value: 1, 2 or 5 times a power of ten apart."""
    power = 10.0 ** math.floor(math.log10(most / TICKS))
    step = next(power * digit for digit in (1, 2, 5, 10) if power * digit * TICKS >= most * (1 - 1e-9))
    return [step * at for at in range(math.ceil(most / step - 1e-9) + 1)]


def short(value):
    """A label without digits that say nothing."""
    return f"{value:.10g}"


def place(second, seconds):
    """The position of a time."""
    return LEFT + (WIDTH - LEFT - RIGHT) * second / seconds
