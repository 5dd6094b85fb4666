"""Draws samples trained and bytes in flight over time, as SVG."""

import pathlib

WIDTH, HEIGHT, EDGE = 720, 300, 56


def draw(path, curve, title):
    """Write the picture of a curve of (seconds, trained, bytes in flight, samples in flight)."""
    seconds = max(curve[-1][0], 1e-9)
    lines = [
        ("samples trained", "#1f6f8b", [(it[0], it[1]) for it in curve]),
        ("MiB in flight", "#c8553d", [(it[0], it[2] / (1 << 20)) for it in curve]),
    ]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="20" text-anchor="middle" font-size="14">{title}</text>',
        f'<path d="M{EDGE} {EDGE / 2}V{HEIGHT - EDGE}H{WIDTH - EDGE}V{EDGE / 2}" fill="none" stroke="#888"/>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 16}" text-anchor="middle">{seconds:.1f} seconds</text>',
    ]
    for at, (name, color, points) in enumerate(lines):
        most = max(value for _, value in points) or 1
        places = " ".join(f"{x(second, seconds):.1f},{y(value, most):.1f}" for second, value in points)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        side, anchor = (EDGE - 6, "end") if at == 0 else (WIDTH - EDGE + 6, "start")
        parts.append(
            f'<text x="{side}" y="{EDGE / 2 + 10}" text-anchor="{anchor}" fill="{color}">{most:.0f}</text>'
        )
        parts.append(
            f'<text x="{EDGE + 12 + 160 * at}" y="{HEIGHT - EDGE + 18}" fill="{color}">{name}</text>'
        )
    pathlib.Path(path).write_text("\n".join([*parts, "</svg>\n"]))


def x(second, seconds):
    """The position of a time."""
    return EDGE + (WIDTH - 2 * EDGE) * second / seconds


def y(value, most):
    """The position of a value."""
    return HEIGHT - EDGE - (HEIGHT - 1.5 * EDGE) * value / most
