"""Host memory of a session: arena, slabs, slots, copies."""
