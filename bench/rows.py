"""What is measured, and the targets: the cases, the rows of the table, its columns and their targets.

A case is the content of one slice of time on each side in turn: the same calls on the same keys in the same
order. A row is one line of the table; its measure is the time of one call in a case.
"""

import dataclasses

KIB, MIB = 1 << 10, 1 << 20
# A bulk target is met by its ratio, or by this fraction of the floor in the same run.
FLOOR_SHARE_WANTED = 0.85
# The numbers of concurrent loopback streams that are measured; the fastest depends on the machine and the
# size.
STREAMS = (1, 2, 4)
# "At the floor": only the floor counts, not a ratio.
FLOOR = None


@dataclasses.dataclass(frozen=True)
class Case:
    """One slice: a number of keys (or batches of keys) of one size, and the number of reads of each known
    key."""

    name: str
    size: int
    items: int = 1
    calls: int = 1
    rounds: int = 1
    # Also measure `put` and `get`, which take and return bytes.
    copying: bool = False
    # Also measure ranged reads, replacements and tensors, if the store has them.
    extended: bool = False
    # Cases that only draw the curves of the report run in every third slice.
    every: int = 1

    @property
    def call_bytes(self):
        return self.size * self.items


# It is short: with fewer rounds its 99th percentile would be that of a few calls.
EXIST = Case("exist 128", 4 * KIB, items=128, calls=1, rounds=100)
CASES = (
    Case("4 KiB", 4 * KIB, calls=100, copying=True, extended=True),
    Case("32 x 4 KiB", 4 * KIB, items=32, calls=4, rounds=4),
    EXIST,
    Case("32 x 64 KiB", 64 * KIB, items=32, calls=4, rounds=2),
    Case("1 MiB", MIB, calls=8, rounds=2, extended=True),
    Case("16 MiB", 16 * MIB, calls=3),
    Case("64 KiB", 64 * KIB, calls=32, every=3),
    Case("256 KiB", 256 * KIB, calls=16, every=3),
    Case("4 MiB", 4 * MIB, calls=4, every=3),
)


@dataclasses.dataclass(frozen=True)
class Column:
    """The two sides of a comparison. Both are named by their shape."""

    title: str
    ours: str
    peer: str


COLUMNS = (
    Column("other process", "same host", "same host"),
    Column("its best shape", "same host", "daemon"),
    Column("same process", "same process", "same process"),
    Column("TCP", "tcp", "tcp"),
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One line: a measure, its unit, and the target in each of the columns."""

    case: str
    measure: str
    unit: str
    targets: tuple

    @property
    def title(self):
        measure, _, beside = self.measure.partition(", ")
        title = measure if self.case == EXIST.name else f"{measure} {self.case}"
        return f"{title}, {beside}" if beside else title

    @property
    def is_bulk(self):
        return self.unit == "GB/s"

    @property
    def more_is_better(self):
        return self.unit != "µs"


BULK_1, BULK_16 = (3.5, 1.5, 1.4, 1.2), (3.5, FLOOR, FLOOR, 1.2)
BATCH_64, BATCH_4 = (5, 2, 1.8, 1.8), (10, 4, 4, 3)
SMALL_GET, SMALL_PUT = (0.25, 0.15, 0.25, 0.6), (0.3, 0.2, 0.3, 0.6)
ROWS = (
    Row("1 MiB", "get_into", "GB/s", BULK_1),
    Row("1 MiB", "put_from", "GB/s", BULK_1),
    Row("16 MiB", "get_into", "GB/s", BULK_16),
    Row("16 MiB", "put_from", "GB/s", BULK_16),
    Row("32 x 64 KiB", "batch_get_into", "GB/s", BATCH_64),
    Row("32 x 64 KiB", "batch_put_from", "GB/s", BATCH_64),
    Row("4 KiB", "get_into", "µs", SMALL_GET),
    Row("4 KiB", "get", "µs", SMALL_GET),
    Row("4 KiB", "put_from", "µs", SMALL_PUT),
    Row("4 KiB", "put", "µs", SMALL_PUT),
    Row("32 x 4 KiB", "batch_get_into", "k objects/s", BATCH_4),
    Row(EXIST.name, "batch_is_exist 128", "k keys/s", (3, 4, 4, 2)),
    # The targets are those of the plain calls. Tensors need torch on both sides.
    Row("1 MiB", "get_into_ranges", "GB/s", BULK_1),
    Row("1 MiB", "upsert_from", "GB/s", BULK_1),
    Row("1 MiB", "get_tensor", "GB/s", BULK_1),
    Row("1 MiB", "put_tensor", "GB/s", BULK_1),
    Row("4 KiB", "get_into_ranges", "µs", SMALL_GET),
    Row("4 KiB", "upsert_from", "µs", SMALL_PUT),
)
# Keys that the client has never read. They are reported beside the targets, which are for known keys.
NEW = ", new keys"
# The first call after all other sides had their turns.
AFTER_PAUSE = ", after a pause"
BESIDE = (
    Row("4 KiB", "put_from" + AFTER_PAUSE, "µs", ()),
    Row("4 KiB", "get_into" + NEW, "µs", ()),
    Row("4 KiB", "get" + NEW, "µs", ()),
    Row("32 x 4 KiB", "batch_get_into" + NEW, "k objects/s", ()),
    Row("32 x 64 KiB", "batch_get_into" + NEW, "GB/s", ()),
    Row("1 MiB", "get_into" + NEW, "GB/s", ()),
    Row("16 MiB", "get_into" + NEW, "GB/s", ()),
    Row("32 x 4 KiB", "batch_put_from", "k objects/s", ()),
)


def of_streams(measure, count, hashed):
    """The name of a socket floor: its number of streams, and whether the receiver hashes."""
    return f"{measure}, {count} streams" + (", hashed" if hashed else "")


def case_named(name):
    return next(case for case in CASES if case.name == name)


def in_unit(row, micros):
    """A time of one call in the unit of the row."""
    case = case_named(row.case)
    if row.unit == "GB/s":
        return case.call_bytes / micros / 1e3
    return micros if row.unit == "µs" else case.items / micros * 1e3
