"""Programs that run beside the agent: what they register, watch and guard."""
