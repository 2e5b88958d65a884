"""The payload of all messages, and the table of orders."""

import os

from pydantic import BaseModel, PositiveInt
from sqlalchemy import Column, Integer, MetaData, String, Table

from hopback.store import Database


class Order(BaseModel):
    id: int
    customer: str
    cents: PositiveInt


tables = MetaData()
orders = Table(
    "orders",
    tables,
    Column("id", Integer, primary_key=True),
    Column("customer", String),
    Column("cents", Integer),
)
database = Database(os.environ.get("DATABASE_URL", "sqlite:///orders.db"), tables=tables)
