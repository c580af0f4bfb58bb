"""`velox-eval doctor`: what this machine offers and what would make it faster."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def doctor(
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Show device, versions, BLAS, caches and offline state, and what would make runs faster."""
    from velox_eval.cli.console import print_json
    from velox_eval.engine.doctor import report

    found = report()
    if json_output:
        print_json(found)
        return
    _print(found)


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for label, value in _rows(found):
        table.add_row(label, value)
    console = Console()
    console.print(table, highlight=False)
    if not found["advice"]:
        console.print("\nNothing is missing.", highlight=False)
        return
    console.print("\n[bold]Advice[/bold]")
    for sentence in found["advice"]:
        console.print(f"- {sentence}", markup=False, highlight=False)


def _rows(found: dict[str, Any]) -> list[tuple[str, str]]:
    from velox_eval.records.sizes import human_bytes

    blas, cache, device = found["blas"], found["cache"], found["device"]
    versions = ", ".join(f"{name} {version}" for name, version in found["packages"].items() if version)
    absent = [
        name for name, version in found["packages"].items() if not version and name in ("lm_eval", "VeloxQuant-MLX")
    ]
    models = [f"{name} ({'ready' if model['present'] else 'not fetched'})" for name, model in found["models"].items()]
    offline = [name for name, on in found["offline"].items() if on]
    library = (
        f"{blas['kind']}: {blas['why']}" if not blas["path"] else f"{blas['kind']}, {blas['path']} ({blas['why']})"
    )
    return [
        ("Python", f"{found['python']}, {found['executable']}"),
        ("Platform", found["platform"]),
        ("Device", f"{device['kind']}, {device['name']}"),
        ("Cores", str(found["cores"])),
        ("Memory", f"{human_bytes(found['memory_bytes'])}, free {human_bytes(found['free_memory_bytes'])}"),
        ("Packages", versions + (f"; not installed: {', '.join(absent)}" if absent else "")),
        ("BLAS", library),
        ("Matrix product", f"{found['matmul_gflops_float32']} GFLOP/s (float32)"),
        ("Cache", f"{cache['path']} ({human_bytes(cache['bytes'])}{'' if cache['writable'] else ', not writable'})"),
        ("Models", ", ".join(models)),
        ("Hub cache", found["hub_cache"]),
        ("Offline", ", ".join(offline) if offline else "no"),
    ]
