"""What runs a service: settings, server, status and telemetry."""
