"""Model services: a transport, one decoder per API, and `lab`, the model you script."""
