"""``prefix_dag``: tasks that wait for one another; those that do not, run side by side."""

from __future__ import annotations

from _run import Example, main, task

from cacheprefix_langgraph import Task, dag_result, prefix_dag

WRITER = "You write plainly, and for people in a hurry."
TASKS = [
    Task("facts", "List the facts in the brief that matter for {question}.", instructions="You are exact."),
    Task("gaps", "List what is missing in the brief for {question}.", instructions="You doubt everything."),
    Task("offers", "Compare the offers.", instructions="You know what transport costs."),
    Task(
        "advice",
        "Give one piece of advice, from these facts:\n{facts}\n\nand gaps:\n{gaps}",
        ["facts", "gaps"],
        instructions=WRITER,
    ),
    Task(
        "letter",
        'Write the letter as {"letter": "..."}. Advice: {advice}\nOffers: {offers}',
        ["advice", "offers"],
        instructions=WRITER,
    ),
]


def dag(example: Example) -> str:
    """Three waves; results are filled in where a prompt names them, other braces are text."""
    graph = prefix_dag(example.llm(), TASKS, variables={"question": "the date of the move"})
    result = dag_result(graph.invoke(task()))
    example.extra["waves"] = [list(wave) for wave in result.waves]
    example.extra["parallelized"] = result.parallelized_count
    example.extra["cached_share"] = result.cached_share
    return result.text("letter")


if __name__ == "__main__":
    main(dag)
