"""The namespaces that keep tenants' KV caches apart in an engine."""

from __future__ import annotations

import hashlib
import hmac
import secrets


class CacheSalts:
    """Derives a tenant's salt from a secret of the server, so that no client can choose or guess another's.

    Args:
        secret: the same for all servers that share engines; empty: a new one for this process.
    """

    def __init__(self, secret: str = "") -> None:
        self._secret = secret.encode() or secrets.token_bytes(32)

    def of(self, tenant: str) -> str:
        """The salt of a tenant. The tenant without a name is the only one there is, and needs none."""
        if not tenant:
            return ""
        return hmac.new(self._secret, tenant.encode(), hashlib.sha256).hexdigest()[:32]
