"""``cacheprefix compare``: the user's own evaluation on both layouts, quality and cost side by side."""

# No deferred annotations here: typer reads them, and is itself only imported when the command is added.
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer

    from cacheprefix.cli.compare_run import Estimate, Layout, Side

EXIT_WORSE = 3
"""The shared layout may be worse by more than was allowed."""


def register(app: "typer.Typer") -> None:
    """Adds the command to a typer application."""
    import typer

    @app.command("compare")
    def compare(
        evaluation: Annotated[
            str, typer.Argument(metavar="MODULE:FUNCTION", help="Your evaluation: runs the application, gives scores.")
        ],
        repeats: Annotated[int, typer.Option(min=1, max=1000, help="Times each layout is evaluated, in turn.")] = 1,
        confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the intervals.")] = 0.95,
        max_loss: Annotated[
            float | None,
            typer.Option(min=0, help="Fail unless the quality is shown to fall by no more than this."),
        ] = None,
        seed: Annotated[int, typer.Option(help="Of the resampling behind the intervals.")] = 0,
        as_json: Annotated[bool, typer.Option("--json", help="Print data instead of a table.")] = False,
    ) -> None:
        """Run your evaluation on the unmodified and on the shared layout: is the cheaper one as good?

        MODULE:FUNCTION is called with new_session, which makes a Session in the mode of the layout (give it what you
        give Session), and yields a score, or (task, score), for each task; it may also return a mapping or a list.
        Scores may have any scale, higher is better. It runs on whatever your application talks to, a provider or a
        local engine. Exit code 0: done; 2: wrong use, or the evaluation failed; 3: --max-loss could not be shown.
        """
        from cacheprefix.cli import compare_run as run
        from cacheprefix.cli.files import print_json
        from cacheprefix.cli.progress import Counting

        evaluate = run.load(evaluation)
        sides = {layout: run.Side() for layout in run.LAYOUTS}
        counting = Counting(repeats * len(sides), "runs")
        for repeat in range(repeats):
            # In turn, and the other one first each time, so that drift of a provider hits both alike.
            for layout in run.LAYOUTS[:: -1 if repeat % 2 else 1]:
                run.run(evaluate, sides[layout], layout)
                counting.step()
        if not all(side.tasks for side in sides.values()):
            raise run.EvaluationError("the evaluation gave no score")
        quality = {
            layout: run.mean_of([task.score for task in side.tasks], confidence, seed) for layout, side in sides.items()
        }
        difference = run.difference(sides, confidence, seed)
        ratio = run.cost_ratio(sides, confidence, seed)
        shown = max_loss is None or difference.low >= -max_loss
        found = _result(evaluation, repeats, confidence, sides, quality, difference, ratio)
        if as_json:
            print_json(found)
        else:
            print("\n".join(_table(found)))
            if max_loss is not None:
                print(f"{'shown' if shown else 'NOT shown'}: the quality falls by no more than {max_loss:g}")
        if not shown:
            raise typer.Exit(EXIT_WORSE)


def _result(
    evaluation: str,
    repeats: int,
    confidence: float,
    sides: "dict[Layout, Side]",
    quality: "dict[Layout, Estimate]",
    difference: "Estimate",
    ratio: "Estimate | None",
) -> dict[str, Any]:
    """The comparison as JSON: each layout's sides, the difference in quality, and the ratio of the costs."""
    from dataclasses import asdict

    plain, shared = sides["unmodified"], sides["shared"]
    whole = shared.cost_units / plain.cost_units if plain.cost_units else None
    if whole is None:
        ratio = None
    return {
        "version": 1,
        "evaluation": evaluation,
        "repeats": repeats,
        "confidence": confidence,
        "layouts": {
            layout: {
                "tasks": len(side.tasks),
                "quality": asdict(quality[layout]),
                "calls": side.calls,
                "input_tokens": side.input_tokens,
                "cached_share": round(side.cached_share, 4),
                "cost_units": round(side.cost_units, 1),
                "usd": side.usd,
                "failures": side.failures,
                "scores": [
                    {"task": task.name, "score": task.score, "cost_units": task.cost_units} for task in side.tasks
                ],
            }
            for layout, side in sides.items()
        },
        "quality_difference": asdict(difference),
        "solved": _solved(plain, shared),
        "cost_ratio": {"value": whole, "low": ratio.low if ratio else None, "high": ratio.high if ratio else None},
    }


def _solved(plain: "Side", shared: "Side") -> dict[str, Any] | None:
    """Rates and the paired test where every score is 0 or 1, that is, where tasks are solved or not; None elsewhere."""
    from cacheprefix.cli.paired import mcnemar, rate

    if any(task.score not in (0.0, 1.0) for side in (plain, shared) for task in side.tasks):
        return None
    pair = mcnemar((bool(a.score), bool(b.score)) for a, b in zip(plain.tasks, shared.tasks, strict=True))
    rates = {
        name: rate(sum(task.score == 1.0 for task in side.tasks), len(side.tasks))
        for name, side in (("unmodified", plain), ("shared", shared))
    }
    return {
        "rates": {name: {"value": one.value, "low": one.low, "high": one.high} for name, one in rates.items()},
        "only_unmodified": pair.only_first,
        "only_shared": pair.only_second,
        "p": pair.p,
        "visible": pair.visible,
    }


def _table(found: dict[str, Any]) -> Iterator[str]:
    """The comparison's lines as they are printed, of its JSON."""
    percent = f"{found['confidence']:.0%}"
    runs = f"{found['repeats']} times" if found["repeats"] > 1 else "once"
    yield f"{found['evaluation']}, each layout {runs}; intervals hold with {percent}"
    yield ""
    head = ("layout", "tasks", "quality", "calls", "input", "cached", "cost units", "USD")
    yield "{:<11} {:>5}  {:<26} {:>6} {:>11} {:>7} {:>11} {:>10}".format(*head)
    for layout, side in found["layouts"].items():
        usd = "-" if side["usd"] is None else f"{side['usd']:.6f}"
        yield (
            f"{layout:<11} {side['tasks']:>5}  {_interval(side['quality'], ''):<26} {side['calls']:>6} "
            f"{side['input_tokens']:>11,} {side['cached_share']:>7.1%} {side['cost_units']:>11,.0f} {usd:>10}"
        )
        if side["failures"]:
            yield f"{'':<11} {side['failures']} requests went out as the application made them, because a step failed"
    yield ""
    yield f"quality of shared less unmodified: {_interval(found['quality_difference'], '+')}"
    solved = found["solved"]
    if solved is not None:
        each = ", ".join(f"{name} {_interval(one, '')}" for name, one in solved["rates"].items())
        yield f"solved (Wilson, 95%): {each}"
        yield (
            f"solved by one only: unmodified {solved['only_unmodified']}, shared {solved['only_shared']}; "
            f"by chance with p = {solved['p']:.3f} (McNemar)"
        )
        yield f"so many tasks show a difference from {solved['visible']:.2f} on"
    idle = [layout for layout, side in found["layouts"].items() if not side["calls"]]
    if idle:
        yield f"cost: not compared, no request went through the session of {' and '.join(idle)} (is the model wrapped?)"
        return
    ratio = found["cost_ratio"]
    sure = _interval(ratio, "") if ratio["low"] is not None else f"{ratio['value']:.3f} (yield scores for an interval)"
    yield f"cost of shared against unmodified: {sure}"


def _interval(estimate: dict[str, float], sign: str) -> str:
    return "{value:{s}.3f} [{low:{s}.3f}, {high:{s}.3f}]".format(**estimate, s=sign)
