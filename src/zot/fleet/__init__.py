"""Sessions on many machines: the queue of prompts, and what gateways ask of workers. See docs/explanation/fleet.md."""
