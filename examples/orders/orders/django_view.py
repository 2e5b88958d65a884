"""Orders from Django: a view for a project's `urls.py`."""

import os

from django.http import HttpRequest, JsonResponse

from hopback import SyncPublisher
from orders.payloads import OrderPlaced

publisher = SyncPublisher(os.environ.get("HOPBACK_BROKER", "amqp://localhost"))


def place(request: HttpRequest) -> JsonResponse:
    order = OrderPlaced.model_validate_json(request.body)
    publisher.publish("order.placed", order, exchange="shop", message_id=f"order-{order.id}")
    return JsonResponse(order.model_dump(), status=202)
