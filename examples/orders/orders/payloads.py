"""The payload of all messages."""

from pydantic import BaseModel, PositiveInt


class OrderPlaced(BaseModel):
    id: int
    customer: str
    cents: PositiveInt
