"""Where RabbitMQ is installed and how its programs are run, either on this machine or in a chroot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["HOST", "Installation", "NotInstalled"]

_SCRIPTS = Path("usr/lib/rabbitmq/bin")
# The mounts are in their own mount namespace, so they disappear with the process.
_INSIDE = 'mount -t proc proc "$0/proc" && mount --bind /dev "$0/dev" && exec chroot "$0" "$@"'


class NotInstalled(RuntimeError):
    """RabbitMQ is not installed. The message names the packages."""


@dataclass(frozen=True, slots=True)
class Installation:
    """An installation of RabbitMQ in the folder `root`."""

    name: str
    root: Path = Path("/")

    def script(self, name: str) -> str:
        """Return the path of a script in the library folder of the package, as seen in the chroot.

        The scripts in sbin are not used, because they require a certain user.
        """
        if not (self.root / _SCRIPTS / name).exists():
            raise NotInstalled(
                f"broker tests need RabbitMQ: expected {self.root / _SCRIPTS / name}, found nothing;"
                f" install it with `{self._remedy()}`"
            )
        return str(Path("/") / _SCRIPTS / name)

    def _remedy(self) -> str:
        if self.is_chroot:
            return "python -m tests.harness.versions"
        return "python -m tests.harness.packages rabbitmq"

    @property
    def is_chroot(self) -> bool:
        """Whether the programs run in a chroot."""
        return self.root != Path("/")

    def command(self, program: str, *arguments: str) -> list[str]:
        """Return the command line that runs a program of this installation."""
        if not self.is_chroot:
            return [program, *arguments]
        separate = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _INSIDE]
        return [*separate, str(self.root), program, *arguments]

    def outside(self, inside: Path) -> Path:
        """Convert a path in the chroot to the path outside of it."""
        return self.root / inside.relative_to("/")


HOST = Installation("host")
