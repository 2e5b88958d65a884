"""The database, and a session for each run of a handler."""

import os
from collections.abc import AsyncGenerator
from typing import Annotated

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from hopback import Depends
from hopback.store import open_database

database = open_database(os.environ.get("DATABASE_URL", "sqlite:///orders.db"))


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]
    cents: Mapped[int]


async def open_session() -> AsyncGenerator[AsyncSession]:
    async with AsyncSession(database) as session, session.begin():
        yield session  # committed before the message is settled, or rolled back


Session = Annotated[AsyncSession, Depends(open_session, scope="run")]
