"""`velox-eval methods`: what can be run, with parameters, papers and differences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from velox_eval.methods import MethodSpec, Variant


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method only; veloxquant/NAME works too.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """List the eviction methods."""
    from velox_eval.cli.console import out, print_json
    from velox_eval.methods import METHODS, method_spec
    from velox_eval.methods.veloxquant import installed_names

    chosen = [method_spec(name)] if name is not None else [METHODS[key] for key in sorted(METHODS)]
    if as_json:
        documents = [_document(spec) for spec in chosen]
        print_json(documents[0] if name is not None else documents)
        return
    console = out()
    if name is None:
        _overview(console, chosen)
    for spec in chosen:
        _detail(console, spec)
    if name is None:
        console.print("\nthe installed package's own caches (extra veloxquant)", style="bold")
        console.print(", ".join(installed_names()))


def _document(spec: MethodSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "family": spec.family,
        "ranks_by": spec.ranks_by,
        "paper": spec.paper,
        "code": spec.code,
        "default_budget": spec.default_budget,
        "variants": {name: _variant(variant) for name, variant in spec.variants.items()},
    }


def _variant(variant: Variant) -> dict[str, Any]:
    return {
        "capacity": variant.capacity,
        "differs": variant.differs,
        "needs_queries": variant.needs_queries,
        "min_budget": variant.min_budget({p.name: p.default for p in variant.parameters}),
        "parameters": [
            {
                "name": parameter.name,
                "type": type(parameter.default).__name__,
                "default": parameter.default,
                "minimum": parameter.minimum,
                "maximum": parameter.maximum,
                "choices": list(parameter.choices),
                "help": parameter.help,
            }
            for parameter in variant.parameters
        ],
    }


def _overview(console: Console, specs: list[MethodSpec]) -> None:
    from rich.table import Table

    table = Table("method", "family", "variants", "budget", "ranks a row by")
    for spec in specs:
        budget = "-" if spec.default_budget is None else str(spec.default_budget)
        table.add_row(spec.name, spec.family, ", ".join(spec.variants), budget, spec.ranks_by)
    console.print(table)


def _detail(console: Console, spec: MethodSpec) -> None:
    from rich.padding import Padding

    console.print(f"\n{spec.name}", style="bold")
    budget = "none: it keeps every row" if spec.default_budget is None else f"{spec.default_budget} rows by default"
    for title, text in (
        ("family", spec.family),
        ("ranks by", spec.ranks_by),
        ("paper", spec.paper),
        ("code", spec.code),
        ("budget", budget),
    ):
        console.print(Padding(f"{title + ':':<10}{text}", (0, 0, 0, 2)))
    for name, variant in spec.variants.items():
        label = spec.name if name == "adapted" else f"{spec.name}:{name}"
        console.print(Padding(f"--method {label}", (0, 0, 0, 2)), style="italic")
        console.print(Padding(f"holds:   {variant.capacity}", (0, 0, 0, 4)))
        console.print(Padding(f"differs: {variant.differs}", (0, 0, 0, 4)))
        for p in variant.parameters:
            console.print(Padding(f"--set {p.name}={p.default}  ({p.bounds}) {p.help}", (0, 0, 0, 4)))
