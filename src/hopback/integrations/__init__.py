"""Failure plans for consumers of other libraries, which keep their framework.

Each module needs the library of its name: `hopback.integrations.faststream`, `.aio_pika`, `.pika` and
`.celery`.
"""

__all__: list[str] = []
