"""`velox-eval score`: a stored run, or anybody's answers in a file, scored without a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from velox_eval.cli import judging

FOREIGN = "Answers from a file"


def score(
    run: Annotated[str | None, typer.Argument(help="Folder of a run, or its id under --results.")] = None,
    responses: Annotated[
        str | None,
        typer.Option(help="Instead of a run: JSONL or JSON array, one answer an object.", rich_help_panel=FOREIGN),
    ] = None,
    task: Annotated[str | None, typer.Option(help="The benchmark they answer.", rich_help_panel=FOREIGN)] = None,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--field",
            metavar="NAME=FIELD",
            help="Where response, id, prompt, prompt_sha256, ratings are: response=text; repeatable.",
            rich_help_panel=FOREIGN,
        ),
    ] = None,
    match: Annotated[
        str | None,
        typer.Option(
            help="id, prompt or order. (default: id where rows have one, else prompt)", rich_help_panel=FOREIGN
        ),
    ] = None,
    allow_missing: Annotated[
        bool, typer.Option("--allow-missing", help="Leave out samples without a row.", rich_help_panel=FOREIGN)
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="What wrote the answers. (default: the file's name)", rich_help_panel=FOREIGN)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model that did, as you know it.", rich_help_panel=FOREIGN)
    ] = None,
    rated_by: Annotated[
        str | None, typer.Option(help="The judge that gave stored ratings.", rich_help_panel=FOREIGN)
    ] = None,
    source: Annotated[
        str | None, typer.Option(help="bundled or official. (default: the task's first)", rich_help_panel=FOREIGN)
    ] = None,
    variant: Annotated[str | None, typer.Option(help="Variant of the task's data.", rich_help_panel=FOREIGN)] = None,
    limit: Annotated[
        int | None, typer.Option(help="The task's first samples. (default: the task's)", rich_help_panel=FOREIGN)
    ] = None,
    entries: Annotated[
        int | None, typer.Option(help="Entries asked for in one answer.", rich_help_panel=FOREIGN)
    ] = None,
    data_seed: Annotated[int | None, typer.Option(help="Seed of bundled material.", rich_help_panel=FOREIGN)] = None,
    data: Annotated[str | None, typer.Option(help="The task's data; of a run, where it is now.")] = None,
    judge: Annotated[str | None, typer.Option(help=f"{judging.JUDGE_HELP} (default: the run's, or rules)")] = None,
    judge_repeats: judging.Repeats = None,
    judge_concurrency: judging.Concurrency = 8,
    judge_timeout: judging.Timeout = 120.0,
    judge_cache: judging.Cache = None,
    results: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("results"),
    again: Annotated[bool, typer.Option("--again", help="Score anew although that was done before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")] = False,
) -> None:
    """Score a stored run again, with today's scoring or another judge; or answers that anybody's program wrote.

    The stored run stays as it is. Answers from a file become a run of their own, which says that they are foreign:
    velox-eval score --task longwriter --data longbench_write_en.jsonl --responses preds.jsonl --name SnapKV
    """
    from velox_eval.cli.run import finish, parse_settings
    from velox_eval.errors import ConfigError
    from velox_eval.records.store import find_run
    from velox_eval.runs.rescore import rescore
    from velox_eval.runs.responses import ResponseOptions, score_responses

    command = ("velox-eval", *sys.argv[1:])
    asked = judging.judge_options(judge_repeats, judge_concurrency, judge_timeout, judge_cache)
    shared: dict[str, Any] = {
        "results": results,
        "data": data,
        "again": again,
        "command": command,
        "judging": asked,
    }
    foreign: dict[str, Any] = {
        "task": task,
        "fields": parse_settings(fields or [], "--field") or None,
        "match": match,
        "allow_missing": allow_missing or None,
        "name": name,
        "model": model,
        "rated_by": rated_by,
        "source": source,
        "variant": variant,
        "limit": limit,
        "entries": entries,
        "data_seed": data_seed,
    }
    given = {key: value for key, value in foreign.items() if value is not None}
    if (run is None) == (responses is None):
        raise ConfigError("give either a stored run, as in: score RUN, or answers: score --task TASK --responses FILE")
    if run is not None:
        if given:
            option = next(iter(given)).replace("_", "-").replace("fields", "field")
            raise ConfigError(f"--{option} is for answers from a file (--responses FILE); a stored run has its own")
        finish(rescore(find_run(run, results), judge=judge, **shared), command, as_json=as_json)
        return
    if task is None:
        raise ConfigError(f"--responses {responses} needs the task it answers: --task NAME (see velox-eval tasks)")
    options = ResponseOptions(responses=str(responses), judge=judge or "rules", **given, **shared)
    finish(score_responses(options), command, as_json=as_json)
