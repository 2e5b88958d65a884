"""The command `hopback simulate`, which shows what happens to a message as a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hopback.cli.exits import CommandFailed, Exit
from hopback.cli.options import format_option
from hopback.cli.terminal import document, json_text
from hopback.cli.topology_options import TopologySource, broker_version_option, topology_source
from hopback.durations import format_duration
from hopback.testing.simulate import Script, Timeline, TimelineStep
from hopback.text import one_line as safe

if TYPE_CHECKING:
    from hopback.version import BrokerVersion


def _script(ctx: click.Context, option: click.Parameter, value: str) -> Script:
    try:
        return Script.parse(value)
    except ValueError as error:
        raise click.BadParameter(f"{error}.", ctx, option) from error


@click.command(short_help="Simulate a failing message in virtual time.")
@topology_source
@click.option("--queue", required=True, metavar="Q", help="The queue whose handler fails.")
@click.option(
    "--fail",
    "script",
    required=True,
    callback=_script,
    metavar="HOW",
    help="Number of failing runs, `always`, or one character per run: . succeeds, x or r"
    " fails, p parks, s snoozes for 1 s.",
)
@click.option(
    "--routing-key", metavar="K", help="Routing key. Default: one that matches a binding."
)
@click.option("--exchange", metavar="X", help="Exchange. Default: one that routes to Q.")
@broker_version_option("RabbitMQ version to simulate, for example 3.10. Default: 4.0.")
@format_option("text", "json", "mermaid")
def simulate(
    source: TopologySource,
    queue: str,
    script: Script,
    routing_key: str | None,
    exchange: str | None,
    version: BrokerVersion | None,
    form: str,
) -> None:
    """Publish one message to the embedded broker and show its path.

    The handler of queue Q fails as specified by --fail. All other consumers succeed. Time is
    virtual, so half an hour passes in milliseconds.
    """
    from hopback.testing.simulate import DEFAULT_VERSION
    from hopback.testing.simulate import simulate as play

    topology = source.topology()
    if topology.plan(queue) is None:
        known = ", ".join(plan.queue for plan in topology.plans)
        raise CommandFailed(
            f"expected a queue of {topology.name} that has a plan, got {queue!r}",
            do=f"Queues with a plan: {known}."
            if known
            else "Definitions contain no plans: write a .toml file.",
            code=Exit.NOT_FOUND,
        )
    timeline = play(
        topology,
        queue=queue,
        script=script,
        exchange=exchange,
        routing_key=routing_key,
        version=version or DEFAULT_VERSION,
    )
    _print(timeline, form)


def _print(timeline: Timeline, form: str) -> None:
    if form == "json":
        document(json_text(_as_data(timeline)))
    elif form == "mermaid":
        from hopback.testing.simulate import sequence_of

        document(sequence_of(timeline))
    else:
        # Print three columns. If an entry has counting headers, they are printed below it.
        queues = max(len(entry.queue) for entry in timeline.entries)
        times = max(len(format_duration(entry.at_ms)) for entry in timeline.entries)
        for entry in timeline.entries:
            at = format_duration(entry.at_ms).rjust(times)
            click.echo(f"{at}  {safe(entry.queue).ljust(queues)}  {safe(entry.description)}")
            if entry.headers:
                headers = ", ".join(f"{name}: {value}" for name, value in entry.headers.items())
                click.echo(f"{' ' * times}    {safe(headers)}")
        last = timeline.last_event
        runs = "1 run" if timeline.runs == 1 else f"{timeline.runs} runs"
        ending = _ENDINGS.get(last.step, "stays in")
        copies = ", ".join(f"{queue} {number}" for queue, number in timeline.extra_copies.items())
        summary = (
            f"The message {ending} {last.queue} after {runs} and {format_duration(last.at_ms)}."
            f" Extra copies through retries: {copies or 'none'}."
        )
        click.echo(f"\n{safe(summary)}")


_ENDINGS = {
    TimelineStep.DONE: "is done in",
    TimelineStep.PARKED: "is parked in",
    TimelineStep.LOST: "is lost on its way from",
}


def _as_data(timeline: Timeline) -> dict[str, object]:
    entries = [
        {
            "at_ms": entry.at_ms,
            "step": str(entry.step),
            "queue": entry.queue,
            "text": entry.text,
            "headers": dict(entry.headers),
        }
        for entry in timeline.entries
    ]
    return {
        "topology": timeline.topology,
        "queue": timeline.queue,
        "broker_version": str(timeline.version),
        "exchange": timeline.exchange,
        "routing_key": timeline.routing_key,
        "timeline": entries,
        "runs": timeline.runs,
        "duration_ms": timeline.duration_ms,
        "ending": {"step": str(timeline.last_event.step), "queue": timeline.last_event.queue},
        "extra_copies": dict(timeline.extra_copies),
    }
