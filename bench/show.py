"""The tables on the terminal."""

import rows

WIDTH = 28
CELL = 27
EXPLANATION = (
    "A ratio is the median over neighbouring slices, ours to theirs: of throughput, or for 4 KiB of time.\n"
    "For 99th percentiles it is the median over the repetitions.\n"
    f"A bulk target is met by its ratio or by {100 * rows.FLOOR_SHARE_WANTED:.0f} % of the same-run floor.\n"
    "The floor of TCP hashes the received bytes once; the fraction without hashing is shown beside it.\n"
    "Gets are of keys that the client has read before; new keys are in the tables above."
)


def ratio(cell, faster):
    """A speed-up in the direction of its row: a multiple of the rate, or a fraction of the time."""
    if cell["unit"] == "µs":
        return f"{1 / faster:.2f}x"
    return f"{faster:.1f}x" if faster >= 9.95 else f"{faster:.2f}x"


def spread(cell, name):
    """A ratio with those of the worst and the best repetition."""
    ends = sorted((cell[f"{name}_low"], cell[f"{name}_high"]), reverse=cell["unit"] == "µs")
    return f"{ratio(cell, cell[name])} ({' to '.join(ratio(cell, end) for end in ends)})"


def wanted(row, target):
    if target is None:
        return "floor"
    return f">= {target:g}x" if row.more_is_better else f"<= {target:g}x"


def number(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


def share(value):
    return "-" if value is None else f"{100 * value:.0f} %"


def details(cells):
    """One table per column, with all measurements."""
    lines = []
    for column in rows.COLUMNS:
        of_column = [cell for cell in cells if cell["column"] == column.title]
        if not of_column:
            continue
        head = ("tiffin", "p99 µs", "mooncake", "p99 µs", "ratio (repetitions)", "its p99", "floor", "of it")
        widths = (10, 10, 10, 10, 26, 26, 10, 8)
        titles = "".join(f"{title:>{width}}" for title, width in zip(head, widths, strict=True))
        lines.append(f"\n{column.title}: tiffin {column.ours}, mooncake {column.peer}\n{'':<44}{titles}")
        for cell in of_column:
            words = (
                number(cell["tiffin"]),
                number(cell["p99_us"]["tiffin"]),
                number(cell["mooncake"]),
                number(cell["p99_us"]["mooncake"]),
                spread(cell, "faster"),
                spread(cell, "p99_faster"),
                number(cell["floor"]) if "floor" in cell else "-",
                share(cell["of_floor"]),
            )
            words = "".join(f"{word:>{width}}" for word, width in zip(words, widths, strict=True))
            lines.append(f"{cell['row'] + ', ' + cell['unit']:<44}{words}")
    return "\n".join(lines)


def mark(is_met):
    return "met" if is_met else "MISSED"


def lines_of(row, found):
    """A row of the table: the ratio and its target, its 99th percentile, and the floor."""
    first, second, third = [], [], []
    for target, cell in zip(row.targets, found, strict=True):
        if cell is None:
            first.append("-"), second.append("-"), third.append("-")
            continue
        by = " (floor)" if cell["met_by_floor"] else ""
        first.append(f"{ratio(cell, cell['faster'])} {wanted(row, target)}  {mark(cell['met'])}{by}")
        second.append(f"{ratio(cell, cell['p99_faster'])}  {mark(cell['p99_met'])}")
        bare = cell["of_bare_streams"]
        third.append(share(cell["of_floor"]) + (f" (bare: {share(bare)})" if bare else ""))
    yield row.title, first
    yield "  its 99th percentile", second
    if row.is_bulk:
        yield "  fraction of the floor", third


def targets(cells):
    """The table of targets: each row in each column, the target and the result."""
    by_place = {(cell["row"], cell["column"]): cell for cell in cells}
    lines = ["", line("", [column.title for column in rows.COLUMNS])]
    met = total = 0
    for row in rows.ROWS:
        found = [by_place.get((row.title, column.title)) for column in rows.COLUMNS]
        lines += [line(title, words) for title, words in lines_of(row, found)]
        met += sum(cell["met"] + cell["p99_met"] for cell in found if cell)
        total += sum(2 for cell in found if cell)
    lines.append(f"\n{met} of {total} targets are met; the 99th percentiles are half of them.")
    lines.append(EXPLANATION)
    return "\n".join(lines)


def line(title, words):
    return "".join([f"{title:<{WIDTH}}", *(f"{word:>{CELL}}" for word in words)])
