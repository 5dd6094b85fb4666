"""Converts times into verdicts: ratios of neighbouring slices, their spread, and whether a target is met.

Our slice is compared with the neighbouring slice of the peer, so that a disturbance longer than a slice
affects both. The ratio of a cell is the median over all its slices. Its spread is from the smallest to the
largest median of a repetition. A slice has too few calls for a 99th percentile: that of a repetition is
compared with the peer's of the same repetition, and the median over these counts.
"""

import statistics

import rows


class Samples:
    """The microseconds of every call: by side, shape, case and measure, then by repetition and slice."""

    def __init__(self):
        self.slices = {}

    def keep(self, who, shape, case, repetition, number, times):
        for measure, values in times.items():
            slices = self.slices.setdefault((who, shape, case.name, measure), {})
            slices[repetition, number] = values

    def get(self, who, shape, row):
        return self.slices.get((who, shape, row.case, row.measure), {})

    def floor(self, shape, row):
        """The floor of the machine. Among several streams with a hashing receiver, it is the fastest."""
        return self.get("floor", shape, row) or self.fastest_streams(shape, row, hashed=True)

    def fastest_streams(self, shape, row, hashed):
        """Empty if there are none: only large transfers through sockets use several streams."""
        measure = row.measure.removesuffix(rows.NEW)
        names = [rows.of_streams(measure, count, hashed) for count in rows.STREAMS]
        tried = [self.slices.get(("floor", shape, row.case, name), {}) for name in names]
        return min(filter(None, tried), key=lambda slices: statistics.median(pooled(slices)), default={})


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * part))]


def pooled(slices):
    return [value for values in slices.values() for value in values]


def compare(ours, others):
    """Our speed-up: the median over slices that both sides have, and the smallest and largest repetition."""
    ratios = {}
    for at in ours.keys() & others.keys():
        ratios.setdefault(at[0], []).append(statistics.median(others[at]) / statistics.median(ours[at]))
    if not ratios:
        return None
    medians = [statistics.median(values) for values in ratios.values()]
    every = [value for values in ratios.values() for value in values]
    return statistics.median(every), min(medians), max(medians)


def compare_p99(ours, others):
    """The same for the 99th percentile, which needs a whole repetition."""
    ratios = [p99(others, which) / p99(ours, which) for which in repetitions(ours) & repetitions(others)]
    return (statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def repetitions(slices):
    return {repetition for repetition, _ in slices}


def p99(slices, which):
    """The 99th percentile of one repetition."""
    return percentile(pooled({at: values for at, values in slices.items() if at[0] == which}), 0.99)


def cell(samples, row, column, target):
    """One cell of the table; `None` if one of the two was not measured."""
    ours, peer = samples.get("tiffin", column.ours, row), samples.get("mooncake", column.peer, row)
    floor, bare = samples.floor(column.ours, row), samples.fastest_streams(column.ours, row, hashed=False)
    if not ours or not peer:
        return None
    faster, low, high = compare(ours, peer)
    p99_faster, p99_low, p99_high = compare_p99(ours, peer)
    everybody = {"tiffin": ours, "mooncake": peer, "floor": floor}
    everybody = {name: slices for name, slices in everybody.items() if slices}
    found = {
        "row": row.title,
        "column": column.title,
        "unit": row.unit,
        "faster": faster,
        "faster_low": low,
        "faster_high": high,
        "of_floor": compare(ours, floor)[0] if floor else None,
        "of_bare_streams": compare(ours, bare)[0] if bare else None,
        "p99_faster": p99_faster,
        "p99_faster_low": p99_low,
        "p99_faster_high": p99_high,
        "p99_of_floor": compare_p99(ours, floor)[0] if floor else None,
        "p99_us": {name: percentile(pooled(slices), 0.99) for name, slices in everybody.items()},
    }
    for name, slices in everybody.items():
        found[name] = rows.in_unit(row, statistics.median(pooled(slices)))
    return found | verdict(row, target, found)


def verdict(row, target, found):
    """Whether the ratio or the floor is reached, for the median and for the 99th percentile."""
    if target == ():
        return {}
    at_floor = lambda share: row.is_bulk and share is not None and share >= rows.FLOOR_SHARE_WANTED
    wanted = target if target is None or row.more_is_better else 1 / target
    by_ratio = lambda faster: wanted is not None and faster >= wanted
    return {
        "target": target,
        "met": by_ratio(found["faster"]) or at_floor(found["of_floor"]),
        "met_by_floor": not by_ratio(found["faster"]) and at_floor(found["of_floor"]),
        "p99_met": by_ratio(found["p99_faster"]) or at_floor(found["p99_of_floor"]),
    }


def cells(samples):
    found = []
    for row in rows.ROWS + rows.BESIDE:
        for index, column in enumerate(rows.COLUMNS):
            target = row.targets[index] if row.targets else ()
            found.append(cell(samples, row, column, target))
    return [it for it in found if it]


def series(samples):
    """All measures of all sides, in the format of `tiffin bench`."""
    found = []
    for (who, shape, name, measure), slices in samples.slices.items():
        if measure.endswith(rows.AFTER_PAUSE):
            continue
        case, times = rows.case_named(name), pooled(slices)
        measure, _, streams = measure.partition(", ")
        keys = "new" if streams == "new keys" else "known" if "get" in measure else None
        median = statistics.median(times)
        found.append(
            {
                "source": who,
                "shape": shape,
                "workload": measure,
                "keys": keys if who != "floor" else None,
                "streams": int(streams.split()[0]) if "streams" in streams else None,
                "hashed": streams.endswith("hashed"),
                "size": case.size,
                "items": case.items,
                "clients": 1,
                "calls": len(times),
                "seconds": sum(times) / 1e6,
                "bytes_per_second": 0 if name == rows.EXIST.name else case.call_bytes / median * 1e6,
                "calls_per_second": 1e6 / median,
                "micros": {
                    "mean": statistics.fmean(times),
                    "p50": median,
                    "p90": percentile(times, 0.9),
                    "p99": percentile(times, 0.99),
                    "p999": percentile(times, 0.999),
                    "max": max(times),
                },
            }
        )
    return found
