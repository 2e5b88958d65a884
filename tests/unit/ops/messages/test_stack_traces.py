"""Stack traces of other languages: the innermost cause is shown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hopback.message import Properties, Received
from hopback.ops.messages.dead_letter import read_dead_letter
from hopback.ops.messages.frameworks import foreign_failure
from hopback.ops.messages.stack_traces import root_cause

_SPRING = """org.springframework.amqp.rabbit.support.ListenerExecutionFailedException: Listener method threw
\tat org.springframework.amqp.rabbit.listener.adapter.MessagingMessageListenerAdapter.invoke(M.java:274)
Caused by: java.lang.IllegalStateException: wrapped
\tat com.acme.shop.Reserve.reserve(Reserve.java:40)
Caused by: {cause}
\tat org.postgresql.core.v3.QueryExecutorImpl.receiveErrorResponse(QueryExecutorImpl.java:2676)
\tat com.acme.shop.{place}(Stock.java:77)
\tat java.base/java.lang.Thread.run(Thread.java:833)
\t... 14 more
"""
_NET = """System.AggregateException: One or more errors occurred. ---> System.InvalidOperationException: no
 ---> Acme.Billing.CardDeclinedException: Card 42 was declined
   at Acme.Billing.Charge.Run(Order order) in /src/Charge.cs:line 12
   --- End of inner exception stack trace ---
   at MassTransit.Consumer.Consume(ConsumeContext context)
"""
_NODE = """Error: handler failed
    at RpcExceptionsHandler.handle (/app/node_modules/@nestjs/microservices/x.js:10:5)
  [cause]: TypeError: order.items is not iterable
    at total (/app/dist/orders/total.js:7:21)
"""
_ELIXIR = """** (EXIT from #PID<0.1.0>) an exception was raised:
    ** (KeyError) key :sku not found
        (shop 0.1.0) lib/shop/stock.ex:31: Shop.Stock.reserve/2
        (broadway 1.0.7) lib/broadway/topology/processor.ex:165: Broadway.handle/4
"""
_PYTHON = """Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/celery/app/trace.py", line 451, in trace_task
  File "/srv/shop/tasks.py", line 14, in reserve
ValueError: no stock
"""


@pytest.mark.parametrize(
    ("stack", "told"),
    [
        (
            _SPRING.format(cause="org.postgresql.util.PSQLException: ERROR: deadlock", place="A.b"),
            ("org.postgresql.util.PSQLException", "ERROR: deadlock", "com.acme.shop.A.b"),
        ),
        (
            _NET,
            (
                "Acme.Billing.CardDeclinedException",
                "Card 42 was declined",
                "Acme.Billing.Charge.Run",
            ),
        ),
        (_NODE, ("TypeError", "order.items is not iterable", "total")),
        (_ELIXIR, ("KeyError", "key :sku not found", "Shop.Stock.reserve/2")),
        (_PYTHON, ("Outer", "text", "tasks.py:reserve")),
        ("", ("Outer", "text", "")),
        ("nothing of the kind\nat all", ("Outer", "text", "")),
    ],
)
def test_innermost_cause_is_found_in_five_languages(stack: str, told: tuple[str, str, str]) -> None:
    """Java, .NET, Node.js, Elixir and Python: type, message and the application's frame."""
    assert root_cause("Outer", "text", stack) == told


def _of_spring(cause: str, place: str) -> dict[str, str]:
    return {
        "x-exception-stacktrace": _SPRING.format(cause=cause, place=place),
        "x-exception-message": "Listener method threw",
    }


def _read(headers: dict[str, object]) -> object:
    delivery = Received("q.dlq", "", "q.dlq", b"", Properties(headers=headers))  # type: ignore[arg-type]
    return read_dead_letter(delivery, 1)


def test_spring_failures_are_grouped_by_cause() -> None:
    stock = _read({**_of_spring("com.acme.OutOfStockException: sku 7", "Stock.take")})
    other = _read({**_of_spring("com.acme.OutOfStockException: sku 8", "Stock.take")})
    deadlock = _read({**_of_spring("org.postgresql.util.PSQLException: deadlock", "Stock.save")})
    assert stock.error == "com.acme.OutOfStockException"  # type: ignore[attr-defined]
    assert stock.fingerprint == other.fingerprint  # type: ignore[attr-defined]
    assert stock.fingerprint != deadlock.fingerprint  # type: ignore[attr-defined]


def test_symfony_handler_failed_exception_shows_inner_exception() -> None:
    inner = {"class": "App\\Error\\Bounced", "message": "no such mailbox", "previous": None}
    stamp = {
        "exceptionClass": "Symfony\\Component\\Messenger\\Exception\\HandlerFailedException",
        "exceptionMessage": "Handling failed",
        "flattenException": {"class": "Wrapper", "message": "", "previous": inner},
    }
    name = "X-Message-Stamp-Symfony\\Component\\Messenger\\Stamp\\ErrorDetailsStamp"
    found = _read({name: json.dumps([stamp])})
    assert (found.error, found.error_message) == (  # type: ignore[attr-defined]
        "App\\Error\\Bounced",
        "no such mailbox",
    )


@pytest.mark.parametrize(
    ("headers", "error", "message"),
    [
        ({"x-last-error": "no answer from 10.0.0.7: 3"}, "", "no answer from 10.0.0.7: 3"),
        ({"x-last-error": "TimeoutError: 30 s"}, "TimeoutError", "30 s"),
        ({"error_class": "Net::ReadTimeout", "error_message": "late"}, "Net::ReadTimeout", "late"),
    ],
)
def test_custom_error_headers_are_recognised(
    headers: dict[str, object], error: str, message: str
) -> None:
    found = _read(headers)
    told = (found.error, found.error_message, found.recorded_by)  # type: ignore[attr-defined]
    assert told == (error, message, "its consumer")


@given(st.text(max_size=300), st.text(alphabet="->: aA.(){}*#\n\\`+[]cuse", max_size=2000))
def test_random_stack_trace_returns_three_strings(kind: str, stack: str) -> None:
    assert len(root_cause(kind, "", stack)) == 3


def test_error_type_is_read_from_header_or_stack_trace() -> None:
    typed = {"x-exception-type": "app.Refused", "x-exception-message": "too many"}
    stacked = {
        "x-error-message": "failed",
        "x-error-stack": "AxiosError: failed\n    at sync (a.js:1)",
    }
    found = [foreign_failure(headers) for headers in (typed, stacked)]
    assert [one and (one.failure.type, one.failure.message) for one in found] == [
        ("app.Refused", "too many"),
        ("AxiosError", "failed"),
    ]
