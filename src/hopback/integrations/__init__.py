"""Failure plans for consumers of other libraries: keep the framework, and lose nothing.

Each module is a door of its own, and needs the library that it is named for:
`hopback.integrations.faststream`, `.aio_pika`, `.pika` and `.celery`.
"""

__all__: list[str] = []
