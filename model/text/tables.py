"""Rows of Parquet, CSV and TSV files, read in batches by the optional package pyarrow."""

from collections.abc import Iterator, Sequence
from typing import Any

PARQUET = ".parquet"
BATCH = 256  # rows of a Parquet file that are decoded at a time
BLOCK = 1 << 26  # bytes of a CSV file that are parsed at a time; no row may be longer


def table_rows(raw: Any, name: str, ending: str, wanted: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each row of an opened table with its place, as a dict of those of the ``wanted`` columns that it has.

    In CSV and TSV, quoted fields may contain line ends, and quotes in them are doubled, as pandas and Python's csv
    module write them. Raises ValueError if the table has none of the columns, or if it is damaged.
    """
    try:
        import pyarrow
    except ImportError:
        raise ValueError(f"{name} needs the extra data: pip install pyarrow, or save it as .jsonl") from None
    number = 0
    try:
        batches = parquet_batches(raw, name, wanted) if ending == PARQUET else csv_batches(raw, name, ending, wanted)
        for batch in batches:
            for values in zip(*batch.columns):
                number += 1
                yield f"{name}, row {number}", dict(zip(batch.schema.names, (value.as_py() for value in values)))
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).split("\n")[0].removeprefix("CSV parse error: ")[:200]
        place = "" if reason.startswith("Row #") else f" after row {number}"
        raise ValueError(f"{name} is not valid{place} ({reason}): correct it, or get it again") from None


def parquet_batches(raw: Any, name: str, wanted: Sequence[str]) -> Iterator[Any]:
    from pyarrow import parquet

    table = parquet.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False)  # else a whole row group is in memory
    columns = choose_columns(name, table.schema_arrow.names, wanted)
    return table.iter_batches(BATCH, columns=columns)


def csv_batches(raw: Any, name: str, ending: str, wanted: Sequence[str]) -> Iterator[Any]:
    from pyarrow import csv, string

    parsing = csv.ParseOptions(delimiter="\t" if ending == ".tsv" else ",", newlines_in_values=True)
    reading = csv.ReadOptions(use_threads=False, block_size=BLOCK)  # several threads would not know the row of an error
    names = csv.open_csv(raw, reading, parsing).schema.names
    columns = choose_columns(name, names, wanted)
    raw.seek(0)
    # Without column types, a text of digits would become a number
    conversion = csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, string()))
    last = ""  # of the last column
    for batch in csv.open_csv(raw, reading, parsing, conversion):
        yield batch
        if columns[-1] == names[-1] and len(batch):
            last = batch[-1][-1].as_py()
    if "\n" in last:  # pyarrow takes a text whose quote is not closed, which is then all the rest of the file
        raw.seek(raw.tell() - 4)
        if not raw.read().rstrip(b"\r\n").endswith(b'"'):
            raise ValueError(f"{name}: the quote before {last[:20]!r} is not closed; correct it")


def choose_columns(name: str, names: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """The wanted columns of a table. Only they are read."""
    found = [column for column in wanted if column in names]
    if not found:
        raise ValueError(f"{name} has no column {wanted[0]!r}: give text_key one of {', '.join(map(ascii, names[:8]))}")
    return found
