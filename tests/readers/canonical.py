"""One text per value, whichever reader it came from.

All readers hand over Arrow, and differ in how: strings as utf8, large_utf8 or views, maps as maps
or as lists of key and value, timestamps with this or that name for UTC. Two values are the same
lake value exactly when their texts here are equal:

    bool                true, false
    integers            -12
    float, double       the shortest digits that give this value back in its width; NaN, Infinity
    decimal             as many digits after the point as the type has
    date                2013-01-31, -4712-01-01 (proleptic Gregorian, year 0 exists)
    timestamp           2013-01-31T10:00:00.000001Z   (UTC, microseconds)
    timestampNtz        2013-01-31T10:00:00.000001
    string              as it is; quoted as in JSON inside of lists, maps and structs
    binary              hex digits
    array               [a,null,b]
    map                 {k:v,k:v}, sorted by key
    struct              (name:value,...)
    NULL                JSON's null, and inside of others the word null
"""

import json
import struct

import pyarrow as pa

SECOND = 1_000_000
DAY = 86_400 * SECOND


def date(days):
    """Days since 1970-01-01 as ISO text, for every year (Hinnant's civil_from_days)."""
    days += 719_468
    era, of_era = divmod(days, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    year = year + era * 400 + (month <= 2)
    sign = "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def timestamp(us):
    days, of_day = divmod(us, DAY)
    seconds, micros = divmod(of_day, SECOND)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{date(days)}T{hour:02}:{minute:02}:{second:02}.{micros:06}"


def floating(value, width):
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if width == 64:
        return repr(value)
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        try:
            if struct.unpack("f", struct.pack("f", float(text)))[0] == value:
                return repr(float(text))
        except OverflowError:  # Rounded up beyond the largest float: one digit more.
            continue
    raise ValueError(f"{value!r} is no 32-bit float")


def column(array):
    """The texts of an Arrow array, None for NULL."""
    if isinstance(array, pa.ChunkedArray):
        return [text for chunk in array.chunks for text in column(chunk)]
    kind = array.type
    t = pa.types
    if isinstance(array, pa.ExtensionArray):
        return column(array.storage)
    if t.is_dictionary(kind):
        return column(array.dictionary_decode())
    if t.is_null(kind):
        return [None] * len(array)
    if t.is_boolean(kind):
        return each(array, lambda v: "true" if v else "false")
    if t.is_integer(kind):
        return each(array, str)
    if t.is_float32(kind):
        return each(array, lambda v: floating(v, 32))
    if t.is_float64(kind):
        return each(array, lambda v: floating(v, 64))
    if t.is_decimal(kind):
        return each(array, lambda v: f"{v:.{kind.scale}f}")
    if t.is_date32(kind):
        return each(array.cast(pa.int32()), date)
    if t.is_timestamp(kind):
        factor = {"s": SECOND, "ms": 1000, "us": 1}.get(kind.unit)
        if factor is None:
            # Delta holds microseconds; a reader that shows finer ones must lose nothing by it.
            numbers = array.cast(pa.int64())
            return each(numbers, lambda v: stamp_ns(v) + zone(kind))
        return each(array.cast(pa.int64()), lambda v: timestamp(v * factor) + zone(kind))
    if t.is_string(kind) or t.is_large_string(kind) or kind == pa.string_view():
        return array.to_pylist()
    if t.is_binary(kind) or t.is_large_binary(kind) or kind == pa.binary_view():
        return each(array, bytes.hex)
    if t.is_map(kind):
        return entries(array, array.keys, array.items)
    if t.is_list(kind) or t.is_large_list(kind):
        inner = kind.value_type
        if t.is_struct(inner) and [f.name for f in inner] == ["key", "value"]:
            return entries(array, array.values.field(0), array.values.field(1))
        inside = quoted(array.values)
        return spans(array, lambda a, b: f"[{','.join(inside[a:b])}]")
    if t.is_struct(kind):
        fields = [(f.name, quoted(array.field(i))) for i, f in enumerate(kind)]
        valid = array.is_valid().to_pylist()
        return [f"({','.join(f'{n}:{texts[i]}' for n, texts in fields)})" if ok else None
                for i, ok in enumerate(valid)]
    raise TypeError(f"no canonical text for Arrow's {kind}")


def stamp_ns(ns):
    if ns % 1000:
        raise TypeError(f"a timestamp finer than a microsecond: {ns} ns")
    return timestamp(ns // 1000)


def zone(kind):
    return "Z" if kind.tz else ""


def each(array, text):
    return [None if v is None else text(v) for v in array.to_pylist()]


def quoted(array):
    """The texts of values inside of others: NULL as a word, strings told apart from it."""
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return quoted(array.storage)
    is_text = (pa.types.is_string(kind) or pa.types.is_large_string(kind)
               or kind == pa.string_view())
    return ["null" if v is None else json.dumps(v, ensure_ascii=False) if is_text else v
            for v in column(array)]


def spans(array, text):
    """One text per list: `text` gets the range of its elements in `array.values`."""
    valid = array.is_valid().to_pylist()
    offsets = array.offsets.to_pylist()
    return [text(offsets[i], offsets[i + 1]) if ok else None for i, ok in enumerate(valid)]


def entries(array, keys, values):
    keys, values = quoted(keys), quoted(values)
    return spans(array, lambda a, b: "{" + ",".join(
        sorted(f"{k}:{v}" for k, v in zip(keys[a:b], values[a:b]))) + "}")


def rows(table):
    """The rows of an Arrow table as lists of texts, sorted, NULL first."""
    columns = [column(table.column(i)) for i in range(table.num_columns)]
    found = [list(row) for row in zip(*columns)] if columns else []
    found.sort(key=lambda row: [(v is not None, v or "") for v in row])
    return found
