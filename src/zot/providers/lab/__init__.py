"""lab, the model you script: no key, no network, every event and every fault on demand.

It speaks HTTP bytes, so the decoders, retries and deadlines that run over it are the real ones. Follow the data:
`script` (what is written) > `stage` (which reply answers) > `plan` (bytes, waits, faults) > `transport` in process
or `server` on a socket. What differs between the model APIs is in one file each.
"""
