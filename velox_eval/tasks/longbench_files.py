"""Where LongBench's rows and prompts are read from: a folder, a file, or the authors' archive and repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from velox_eval.errors import ConfigError, DataError
from velox_eval.tasks.longbench_rows import DataSet, Template, read_templates
from velox_eval.tasks.sources import Row, github_page, github_raw_url, hub_page, hub_url, read_official, read_rows

PROMPTS = "dataset2prompt.json"
FINISHED = "MiniLongBench_"  # file names of rows whose prompts are finished


def official_rows(name: str, place: Mapping[str, str]) -> list[Row]:
    """Returns the rows of a data set from the authors' archive, read by chained URL."""
    return read_official(f"zip://data/{name}.jsonl::{hub_url(**place)}")


def official_templates(names: Sequence[str], place: Mapping[str, str]) -> dict[str, Template]:
    """Returns the templates of `names` from the authors' repository."""
    beside = "put it in a folder config/ beside the data, and give the folder of both with --data"
    (row,) = read_official(github_raw_url(**place), instead=beside)
    return read_templates(row, names)


def how_to_get(settings: Mapping[str, Any]) -> str:
    """Returns where the files are, for messages."""
    data, prompts = settings["official"]["data"], settings["official"]["prompts"]
    return (
        f"get {data['file']} from {hub_page(data['repository'], data['revision'])} and "
        f"{PROMPTS} from {github_page(prompts['repository'], prompts['revision'])}"
    )


def local_files(place: Path, wanted: Sequence[str], get: str) -> dict[str, Path]:
    """Returns data set name -> file, of those of `wanted` that the folder `place` (or data/ in it) has.

    Raises DataError when it has none of them.
    """
    names = [(name, file) for name in wanted for file in (f"{name}.jsonl", f"{name}.json", f"{FINISHED}{name}.json")]
    found: dict[str, Path] = {}
    for folder in (place, place / "data"):
        for name, file in names:
            if name not in found and (folder / file).is_file():
                found[name] = folder / file
    if not found:
        script = sorted(path.name for path in place.glob("*.py"))
        hint = f"{script[0]} is a loading script, which nothing reads any more; " if script else ""
        raise DataError(f"{place}: {hint}no data set of {', '.join(wanted[:3])}, ... as NAME.jsonl; {get}")
    return {name: found[name] for name in wanted if name in found}


def name_of_file(path: Path, sets: Mapping[str, DataSet], rows: Sequence[Row]) -> str:
    """Returns which data set a single file holds: by its name, else by its first row's field `dataset`.

    Raises ConfigError when neither says.
    """
    stem = path.stem.removeprefix(FINISHED)
    said = rows[0].value.get("dataset")
    for name in (stem, said):
        if isinstance(name, str) and name in sets:
            return name
    raise ConfigError(f"{path}: neither its name nor a field 'dataset' says which data set it is; give --variant NAME")


def rows_of(path: Path, get: str) -> list[Row]:
    """Returns a file's rows. One object of numbered objects, as MiniLongBench has, is as many rows."""
    rows = read_rows(path, get=get)
    values = list(rows[0].value.values())
    if len(rows) == 1 and values and all(isinstance(value, dict) for value in values):
        return [Row(f"{rows[0].where}, key {key!r}", value) for key, value in rows[0].value.items()]
    return rows


def local_templates(place: Path, names: Sequence[str], get: str) -> dict[str, Template]:
    """Returns the templates of `names` from dataset2prompt.json beside the data or in a config/ folder there."""
    folder = place if place.is_dir() else place.parent
    places = [base / part / PROMPTS for base in (folder, folder.parent) for part in ("", "config")]
    for path in places:
        if path.is_file():
            (row, *more) = read_rows(path, get=get)
            if more:
                raise DataError(f"{path}: expected one object of data set name -> prompt")
            return read_templates(row, names)
    shown = places[1]
    raise DataError(f"{shown}: no such file, and rows without finished prompts need it; {get}")
