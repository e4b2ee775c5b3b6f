"""A table written by Python deltalake, with the values readers are known to trip over.

It proves the judges, not Tidegate: two versions, every Delta type Tidegate writes, edges of each.
"""

import datetime
from decimal import Decimal

import pyarrow as pa
from deltalake import write_deltalake

SCHEMA = pa.schema([
    ("id", pa.int64()), ("flag", pa.bool_()), ("small", pa.int16()), ("whole", pa.int32()),
    ("single", pa.float32()), ("double", pa.float64()), ("exact", pa.decimal128(38, 10)),
    ("text", pa.string()), ("bytes", pa.binary()), ("day", pa.date32()),
    ("at", pa.timestamp("us", tz="UTC")), ("wall", pa.timestamp("us")),
    ("list", pa.list_(pa.int32())), ("words", pa.list_(pa.string())),
    ("map", pa.map_(pa.string(), pa.string())),
    ("pair", pa.struct([("a", pa.int32()), ("b", pa.string())])),
])


def us(text):
    return datetime.datetime.fromisoformat(text)


FIRST = [
    (1, True, -32768, 2147483647, 0.1, 0.1, Decimal("0.1"), "é 'quoted' \"twice\"\n", b"\x00\xff",
     datetime.date(2013, 1, 31), us("2013-01-31T10:00:00.000001+00:00"),
     us("2013-01-31T10:00:00.000001"), [1, None, 3], ["null", None, "a,b"],
     [("b", "2"), ("a", None)], {"a": 1, "b": "x"}),
    (2, None, None, None, None, None, None, None, None, None, None, None, None, None, None, None),
    (3, False, 0, 0, 1e-45, 5e-324, Decimal("1234567890123456789012345678.0123456789"), "", b"",
     datetime.date(1, 1, 1), us("0001-01-01T00:00:00+00:00"), us("1582-10-10T12:00:00"), [], [],
     [], {"a": None, "b": None}),
    (4, True, 1, -1, float("nan"), float("inf"), Decimal("-0.0000000001"), "\u2603 \U0001f600",
     bytes(range(8)), datetime.date(9999, 12, 31), us("9999-12-31T23:59:59.999999+00:00"),
     us("9999-12-31T23:59:59.999999"), [0], [""], [("", "")], {"a": 0, "b": ""}),
    (5, True, 2, 3, 3.4028235e38, -0.0, Decimal("0"), "goes", b"g", datetime.date(1969, 12, 31),
     us("1969-12-31T23:59:59.999999+00:00"), us("1900-01-01T00:00:00"), [9], ["z"],
     [("k", "v")], {"a": 9, "b": "z"}),
]
SECOND = [(6, False, *FIRST[0][2:])]


def table(rows):
    columns = [[row[i] for row in rows] for i in range(len(SCHEMA))]
    return pa.table([pa.array(c, type=f.type) for c, f in zip(columns, SCHEMA)], schema=SCHEMA)


def write(path):
    write_deltalake(path, table(FIRST), configuration={"delta.enableDeletionVectors": "true"})
    write_deltalake(path, table(SECOND), mode="append")
