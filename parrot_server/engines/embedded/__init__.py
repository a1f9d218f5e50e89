"""The embedded engine: paged attention on OpenVINO with our own step loop, in a process of its own."""
