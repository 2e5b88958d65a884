"""The files under `infra/`, generated from the design, with the names of the document.

`python -m hopback.systems.file_pipeline.infrastructure` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path

from hopback.designs import file_pipeline
from hopback.topology import write_definitions

HOME = Path(__file__).with_name("infra")
"""The folder of the files."""

_IMPORT = """\
#!/bin/sh
# Imports definitions.json into RabbitMQ through its management API, as soon as the API answers.
# A repeated import does not change existing objects.
set -eu

here=$(dirname "$0")
url=${RABBITMQ_MANAGEMENT_URL:-http://rabbitmq:15672}
vhost=${RABBITMQ_VHOST:-%2F} # percent-encoded
tries=${RABBITMQ_TRIES:-60}

quoted() {
    printf '%s' "$1" | sed 's/[\\\\"]/\\\\&/g'
}

# curl reads the password from standard input, because other users can see command lines.
ask() {
    user=$(quoted "${RABBITMQ_USER:-guest}")
    password=$(quoted "${RABBITMQ_PASSWORD:-guest}")
    printf 'user = "%s:%s"\\n' "$user" "$password" |
        curl --config - --silent --show-error --fail --max-time 30 "$@"
}

until ask --output /dev/null "$url/api/overview"; do
    tries=$((tries - 1))
    if [ "$tries" -le 0 ]; then
        echo "no management API at $url: is the plugin enabled, and are user and password right?" >&2
        exit 1
    fi
    sleep 2
done

ask --header 'Content-Type: application/json' \\
    --data-binary "@$here/definitions.json" "$url/api/definitions/$vhost"
echo "imported $here/definitions.json into $url, virtual host $vhost"
"""

_COMPOSE = """\
# RabbitMQ with the topology of the file pipeline.
# To apply changed definitions:
#   docker compose -f infra/docker-compose.yml up -d --force-recreate rabbitmq rabbitmq-init
services:
  rabbitmq:
    image: rabbitmq:4-management
    hostname: rabbitmq
    cap_drop: [ALL]
    cap_add: [CHOWN, DAC_OVERRIDE, FOWNER, SETGID, SETUID]
    security_opt: ["no-new-privileges:true"]
    environment:
      RABBITMQ_DEFAULT_USER: ${RABBITMQ_USER:-guest}
      RABBITMQ_DEFAULT_PASS: ${RABBITMQ_PASSWORD:-guest}
    ports:
      - "127.0.0.1:5672:5672"
      - "127.0.0.1:15672:15672"
    volumes:
      - rabbitmq:/var/lib/rabbitmq
    healthcheck:
      test: ["CMD", "rabbitmq-diagnostics", "-q", "check_running"]
      interval: 5s
      timeout: 10s
      retries: 24

  rabbitmq-init:
    image: curlimages/curl:8.11.0
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    read_only: true
    depends_on:
      rabbitmq:
        condition: service_healthy
    environment:
      RABBITMQ_MANAGEMENT_URL: http://rabbitmq:15672
      RABBITMQ_USER: ${RABBITMQ_USER:-guest}
      RABBITMQ_PASSWORD: ${RABBITMQ_PASSWORD:-guest}
    volumes:
      - ./rabbitmq:/definitions:ro
    entrypoint: ["sh", "/definitions/import-definitions.sh"]
    restart: "no"

volumes:
  rabbitmq:
"""


def infrastructure() -> dict[str, str]:
    """Return the text of each file by its path below `infra/`."""
    definitions, _ = write_definitions(file_pipeline())
    return {
        "docker-compose.yml": _COMPOSE,
        "rabbitmq/definitions.json": json.dumps(definitions, indent=2) + "\n",
        "rabbitmq/import-definitions.sh": _IMPORT,
    }


if __name__ == "__main__":
    for name, text in infrastructure().items():
        path = HOME / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (HOME / "rabbitmq" / "import-definitions.sh").chmod(0o755)
