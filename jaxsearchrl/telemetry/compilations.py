"""Counts what JAX compiles: after the first step there should be nothing left to compile."""

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_count = 0


def _listen(event: str, duration_secs: float, **_: str | int) -> None:
    del duration_secs
    global _count
    _count += event == _EVENT


jax.monitoring.register_event_duration_secs_listener(_listen)


def compilations() -> int:
    """Programs compiled (or taken from the compilation cache) since this module was first imported."""
    return _count
