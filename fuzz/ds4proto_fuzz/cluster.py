"""Chunks of a campaign over a ray cluster (extra ``cluster``).

The machines need the same ds4proto and the peer's command. Findings come back to the
process that runs the campaign, which alone writes files.
"""

from __future__ import annotations

from typing import Any

from ds4proto.errors import Ds4ProtoError, WrongUsage
from ds4proto_fuzz.campaign import carry_out, overdue

__all__ = ["Cluster"]


class Cluster:
    """Carries chunks out as ray tasks.

    Parameters
    ----------
    address : str
        ``local`` starts a cluster in this process; else what `ray.init` takes, such
        as ``auto`` or ``ray://HOST:10001``.
    width : int
        Chunks at one time.

    Raises
    ------
    WrongUsage
        ray is not installed, or the cluster cannot be reached.
    """

    def __init__(self, address: str, width: int) -> None:
        try:
            import ray
        except ImportError:
            raise WrongUsage(
                "--ray needs ray. Next: pip install 'ds4proto[cluster]'"
            ) from None
        self._ray: Any = ray
        self.width = width
        options: dict[str, Any] = {"include_dashboard": False, "num_cpus": width}
        if address != "local":
            options = {"address": address}
        try:
            ray.init(**options, log_to_driver=False, ignore_reinit_error=True)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise WrongUsage(f"--ray {address}: {error}") from None
        # A worker process ends after each task, and with it the peer it started.
        self._task: Any = ray.remote(num_cpus=1, max_calls=1)(carry_out)

    def submit(self, *args: Any) -> Any:
        """Hand a chunk to the cluster."""
        return self._task.remote(*args)

    def wait(
        self, handles: list[Any], seconds: float
    ) -> list[tuple[Any, dict[str, Any]]]:
        """Return what is done."""
        try:
            done, _ = self._ray.wait(handles, num_returns=1, timeout=seconds)
            if not done:
                raise overdue(seconds)
            return [(handle, self._ray.get(handle, timeout=seconds)) for handle in done]
        except self._ray.exceptions.RayError as error:
            why = next(iter(str(error).splitlines()), type(error).__name__)
            raise Ds4ProtoError(
                f"a machine of the cluster has failed: {why}; what it had in hand is "
                "not counted. Next: --resume"
            ) from None

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()
