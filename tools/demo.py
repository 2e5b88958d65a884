"""`make demo`: the five documented designs, played on the embedded broker in virtual time.

No RabbitMQ, no network: each command below is one that you can run yourself.
"""

from __future__ import annotations

import shlex
import sys

from hopback.cli.app import run

SCENES = (
    (
        "An upload whose validation fails three times is parked with its reason.",
        "simulate file-pipeline --queue q.validator --fail always",
    ),
    (
        "An event pushed to a service that answers 5xx twice, then 200.",
        "simulate event-bus --queue wms.queue.wms-orders --fail 2",
    ),
    (
        "A document event waits 30 s, 5 min and 30 min; the audit queue gets every retry again.",
        "simulate freeflow --queue freeflow.documents.queue --routing-key document.created"
        " --fail always",
    ),
    (
        "The same in the hardened form: straight back to the queue that failed, no extra copies.",
        "simulate freeflow --queue freeflow.documents.queue --routing-key document.created"
        " --fail always --hardened",
    ),
    (
        "A user whose insert fails once.",
        "simulate raffle --queue raffle_queue --fail 1",
    ),
    (
        "A message that is hopeless at its second run.",
        "simulate ratatoskr --queue my-service.events --fail xp",
    ),
)

NEXT = """\
That was virtual time on Hopback's embedded broker: minutes of waiting took milliseconds. Try next:

  .venv/bin/hopback systems                      the designs there are
  .venv/bin/hopback topology check freeflow      what a design can lose, and the fix
  .venv/bin/hopback topology show recommended    Hopback's own design for new queues
  .venv/bin/hopback topology export raffle       definitions for your RabbitMQ

The systems do not run as applications yet; this plays their message flows.
"""


def main() -> int:
    """Play every scene; stop at the first that fails."""
    for title, command in SCENES:
        print(f"\n{title}\n$ hopback {command}\n", flush=True)
        code = run(shlex.split(command))
        if code:
            return code
    print(f"\n{NEXT}", end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
