"""Rows of tables: CSV and TSV files by Python's csv module, Parquet and Arrow files by the optional package pyarrow."""

import csv
from collections.abc import Iterator
from typing import Any, TextIO

from ..cli import quantity

PARQUET, ARROW = ".parquet", ".arrow"
BATCH = 256  # rows of a Parquet file that are decoded at a time
DELIMITERS = (",", ";", "\t", "|")  # of a CSV file: the one that gives most columns, the first of equal ones
csv.field_size_limit(1 << 26)  # characters; the default is 131,072, and a quote that is not closed ends the file

Rows = Iterator[tuple[str, Any]]  # each with its place, for errors


def arrow_rows(raw: Any, name: str, ending: str, text_key: str) -> Rows:
    """Each row of an opened Parquet or Arrow file with its place, as a dict.

    Only the column ``text_key`` is read, or the field of a nested column, ``column.field``. Without it the rows are
    perhaps conversations, and all columns are read. Raises ValueError if the file is damaged.
    """
    try:
        import pyarrow
    except ImportError:
        raise ValueError(f"{name} needs the extra data: pip install pyarrow, or save it as .jsonl") from None
    number = 0
    try:
        for batch in parquet_batches(raw, text_key) if ending == PARQUET else arrow_batches(raw, text_key):
            for values in zip(*batch.columns):
                number += 1
                yield f"{name}, row {number}", dict(zip(batch.schema.names, (value.as_py() for value in values)))
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0][:200]
        raise ValueError(f"{name} is not valid after row {number} ({reason}): correct it, or get it again") from None


def parquet_batches(raw: Any, text_key: str) -> Iterator[Any]:
    from pyarrow import parquet

    table = parquet.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False)  # else a whole row group is in memory
    fields = {*table.schema_arrow.names, *(column.path for column in table.schema)}
    return table.iter_batches(BATCH, columns=[text_key] if text_key in fields else None)


def arrow_batches(raw: Any, text_key: str) -> Iterator[Any]:
    """The batches of a file of Arrow's file format, or of its stream format, which save_to_disk writes."""
    from pyarrow import ipc

    is_stream = raw.read(6) != b"ARROW1"
    raw.seek(0)
    names = (ipc.open_stream if is_stream else ipc.open_file)(raw).schema.names
    raw.seek(0)
    column = text_key if text_key in names else text_key.partition(".")[0]
    options = ipc.IpcReadOptions(included_fields=[names.index(column)] if column in names else None)
    if is_stream:
        yield from ipc.open_stream(raw, options=options)
        return
    file = ipc.open_file(raw, options=options)
    for number in range(file.num_record_batches):
        yield file.get_batch(number)


def csv_rows(stream: TextIO, name: str, delimiter: str | None, is_raw: bool) -> Rows:
    """Each row of a CSV or TSV file with its place, as a dict of texts. Blank lines are left out.

    Quoted fields may contain line ends, and quotes in them are doubled, as pandas and Python's csv module write them.
    In a raw file a quote is an ordinary character. Raises ValueError for a row with more or fewer columns than the
    first, and for quotes that are not doubled or not closed.
    """
    first = stream.readline()
    stream.seek(0)
    widths = {each: len(next(csv.reader([first], delimiter=each), [])) for each in delimiter or DELIMITERS}
    reader = csv.reader(
        stream,
        delimiter=max(widths, key=widths.__getitem__),
        quoting=csv.QUOTE_NONE if is_raw else csv.QUOTE_MINIMAL,
        strict=True,
    )
    names: list[str] = []
    line = 1  # with which the next row begins
    try:
        for values in reader:
            where, line = f"{name}:{line}", reader.line_num + 1
            if values and not names:
                names = values
            elif values and len(values) != len(names):
                raise ValueError(
                    f"{where} has {quantity(len(values), 'column')}, but the first line {len(names)}: correct it"
                )
            elif values:
                yield where, dict(zip(names, values))
    except csv.Error as error:
        raise ValueError(
            f"{name}:{line} has a quote that is not closed, or not doubled inside of a quoted field ({error}): write "
            '"He said ""tar""", without backslashes'
        ) from None


def is_raw_tsv(stream: TextIO) -> bool:
    """Whether quotes in a TSV file are ordinary characters, which do not enclose fields.

    They are if all lines have as many tabs as the first, but not all rows that Python's csv module makes of them: there
    a field that only begins with a quote swallows tabs and lines up to the next quote.
    """
    lines = (line for line in stream if line.strip())
    tabs = next(lines, "").count("\t")
    if not tabs or any(line.count("\t") != tabs for line in lines):
        return False
    stream.seek(0)
    try:
        return any(len(row) != tabs + 1 for row in csv.reader(stream, delimiter="\t", strict=True) if row)
    except csv.Error:
        return True
