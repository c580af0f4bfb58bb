"""`velox-eval schema`: the records' JSON Schema."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer


class Record(StrEnum):
    """The records there are."""

    sample = "sample"
    run = "run"
    row = "row"


def schema(
    record: Annotated[
        Record, typer.Option("--for", help="sample: a line of samples.jsonl; run: run.json; row: a line of runs.jsonl.")
    ] = Record.sample,
) -> None:
    """Print the JSON Schema of the stored records."""
    from pydantic import BaseModel

    from velox_eval.cli.console import print_json
    from velox_eval.records.schema import RunHeader, RunRow, SampleRecord

    models: dict[Record, type[BaseModel]] = {Record.sample: SampleRecord, Record.run: RunHeader, Record.row: RunRow}
    print_json(models[record].model_json_schema(mode="serialization"))
