"""What the tests' clients open their channels with."""

# A client that does not read holds the answer up at a few events: one that leaves, or looks away to kill a service, has
# not been overtaken by the answer's end, however long that takes it. A window still smaller makes health watches stall.
NOTHING_AHEAD = (("grpc.http2.lookahead_bytes", 256), ("grpc.http2.bdp_probe", 0))
