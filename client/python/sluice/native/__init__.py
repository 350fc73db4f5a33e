"""Bindings of libsluice and of the daemon: sessions, leases, waiting."""
