"""What a daemon that serves says of itself: where it listens, how it goes, and what it can confirm and carry."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bwrap import host as hosts
from bwrap.text import printable
from spl import __version__
from spl.transports.starting import LOOK_SECONDS

if TYPE_CHECKING:
    from bwrap.cgroup import Groups
    from spl.backups import Backups
    from spl.home import Home
    from spl.kernel.kernel import Kernel
    from spl.transports.starting import Transports

ADDRESS: Final = "127.0.0.1"
"""Where the operator API is had by TCP: this machine alone."""


@dataclass
class Daemon:
    """A daemon that serves, and what it is made of."""

    home: Home
    port: int
    kernel: Kernel
    worker_socket: str
    transports: Transports
    backups: Backups
    groups: Groups
    began: float
    capacity: int = 0

    def announcement(self) -> str:
        """Say where it listens and which layers it could confirm."""
        kernel, isolation = self.kernel, self.transports.isolation
        if isolation.refused is None:
            layers = f"confirmed on a trial worker: {', '.join(isolation.layers)}"
        else:
            layers = f"the trial at start failed, sandboxed starts are refused: {isolation.refused}"
        return "\n".join(
            (
                f"spl {__version__} serves {printable(str(self.home.path))}",
                f"  operator API  http://{ADDRESS}:{self.port} and {printable(str(self.home.operator_socket))}",
                f"  worker doors  {printable(self.worker_socket)}",
                f"  provider      {kernel.broker}",
                f"  shape         {hosts.shape()}",
                f"  layers        {layers}",
                f"  cgroup        {self.groups}",
                (
                    f"  work loops    operator {kernel.config.transport}, members {kernel.config.member_transport}, "
                    f"{self.capacity} sandboxed at once"
                ),
            )
        )

    def status(self) -> str:
        """Say in one line what it does, and what it cannot."""
        runs, refused = len(self.kernel.live), self.transports.isolation.refused
        said = [
            "stopping" if self.transports.stopping else "serving",
            f"{runs} run{'' if runs == 1 else 's'}",
        ]
        if refused is not None:
            said.append(f"sandboxed starts refused: layer {printable(refused.layer)}")
        if self.kernel.store.failing is not None:
            said.append("the log takes no records")
        return ", ".join(said)

    async def health(self) -> dict[str, Any]:
        """Give what `GET /v1/engine/health` answers."""
        kernel = self.kernel
        config = kernel.config
        room = await self.transports.room(config.profile, seconds=LOOK_SECONDS)
        return {
            "status": "stopping" if self.transports.stopping else "ok",
            "version": __version__,
            "uptime_secs": round(time.monotonic() - self.began, 3),
            "instance": {
                "host": socket.gethostname(),
                "operator": kernel.operator,
                "home": str(self.home.path),
            },
            "records": await kernel.store.count(),
            "work_loop": {
                "transport": config.transport,
                "member_transport": config.member_transport,
                "profile": config.profile,
                "tier_profiles": config.tier_profiles,
                "permission_rules": len(config.rules.listed()),
                **room.wire(),
                "standby": self.transports.standby(),
                **({"refused": room.refused.wire()} if room.refused else {}),
            },
            "isolation": {**self.transports.isolation.wire(), "cgroup": self.groups.wire()},
            "store": {"backend": "sqlite", "failing": kernel.store.failing, **await self.backups.wire()},
            "provider": kernel.broker.state(),
            "spend": {"day": kernel.usage.today(), "usd": float(kernel.usage.spent_by_all())},
        }
