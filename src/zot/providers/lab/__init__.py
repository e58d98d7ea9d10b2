"""lab, the scripted model: no key, no network, every event and fault on demand.

It produces HTTP bytes, so the decoders, retries and deadlines above it are the real ones. Data flow: `script`
(grammar) > `service` (chooses the reply) > `performance` (bytes, waits, faults) > `transport` in process or
`server` on a socket. Each model API has its own module.
"""
