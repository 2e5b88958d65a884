"""What travels: the payloads of all messages."""

from pydantic import BaseModel, PositiveInt


class OrderPlaced(BaseModel):
    id: int
    customer: str
    cents: PositiveInt


class ChargeWanted(BaseModel):
    order: int
    cents: PositiveInt


class ChargeEnded(BaseModel):
    order: int
    answer: str
