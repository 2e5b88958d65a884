"""Accept orders with Django. The view can be used in the `urls.py` of a project."""

import os

from django.http import HttpRequest, JsonResponse

from hopback import SyncPublisher
from orders.model import Order

publisher = SyncPublisher(os.environ.get("HOPBACK_BROKER", "amqp://localhost"))


def place(request: HttpRequest) -> JsonResponse:
    order = Order.model_validate_json(request.body)
    publisher.publish("order.placed", order, exchange="shop", message_id=f"order-{order.id}")
    return JsonResponse(order.model_dump(), status=202)
