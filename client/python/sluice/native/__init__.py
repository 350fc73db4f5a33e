"""libsluice and the daemon: sessions, leases, waiting."""
