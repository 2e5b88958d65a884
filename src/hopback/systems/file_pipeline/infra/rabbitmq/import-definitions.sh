#!/bin/sh
# Imports definitions.json into RabbitMQ through its management API, as soon as the API answers.
# A repeated import does not change existing objects.
set -eu

here=$(dirname "$0")
url=${RABBITMQ_MANAGEMENT_URL:-http://rabbitmq:15672}
vhost=${RABBITMQ_VHOST:-%2F} # percent-encoded
tries=${RABBITMQ_TRIES:-60}

quoted() {
    printf '%s' "$1" | sed 's/[\\"]/\\&/g'
}

# curl reads the password from standard input, because other users can see command lines.
ask() {
    user=$(quoted "${RABBITMQ_USER:-guest}")
    password=$(quoted "${RABBITMQ_PASSWORD:-guest}")
    printf 'user = "%s:%s"\n' "$user" "$password" |
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

ask --header 'Content-Type: application/json' \
    --data-binary "@$here/definitions.json" "$url/api/definitions/$vhost"
echo "imported $here/definitions.json into $url, virtual host $vhost"
