"""Retries and dead-letter queues for consumers written with other libraries.

Each module requires the library of the same name: `hopback.integrations.faststream`, `.aio_pika`,
`.pika` and `.celery`.
"""

__all__: list[str] = []
