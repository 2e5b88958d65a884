"""The files in `infra/`. The document specifies their names.

`python -m hopback.systems.file_pipeline.infrastructure` generates `definitions.json` from the
design.
"""

from __future__ import annotations

import json
from pathlib import Path

from hopback.designs import file_pipeline
from hopback.topology import write_definitions

HOME = Path(__file__).with_name("infra")
"""The folder that contains the files."""
DEFINITIONS = HOME / "rabbitmq" / "definitions.json"


def definitions() -> str:
    found, _ = write_definitions(file_pipeline())
    return json.dumps(found, indent=2) + "\n"


if __name__ == "__main__":
    DEFINITIONS.write_text(definitions(), encoding="utf-8")
