"""The conformance suite: RabbitMQ's behaviour, row by row, for every broker that implements the
port.

The embedded broker and RabbitMQ both pass it. Run it against another broker from the root of the
repository::

    from hopback.broker.rabbitmq import RabbitMQ
    from tests.conformance.suite import exercise

    for result in await exercise(RabbitMQ("amqp://localhost/test")):
        print(result.row.id, result.outcome, result.reason)

Use a virtual host without other clients. Rows that set policies or restart nodes are not tested
unless `Facilities` contains a way to do so.
"""

from tests.conformance.suite.exercise import Outcome, Result, exercise, run_row
from tests.conformance.suite.row import Mismatch, Row, Tag, rows
from tests.conformance.suite.subject import (
    Facilities,
    Lacking,
    NodeControl,
    PolicyControl,
    Subject,
    Timings,
)

__all__ = [
    "Facilities",
    "Lacking",
    "Mismatch",
    "NodeControl",
    "Outcome",
    "PolicyControl",
    "Result",
    "Row",
    "Subject",
    "Tag",
    "Timings",
    "exercise",
    "rows",
    "run_row",
]
