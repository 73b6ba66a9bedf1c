"""The five systems, one folder each, with the same rooms: settings, table, service, api.

They use the public door (`redrive`), `redrive.ports`, `redrive.events`, `redrive.system`, `redrive.extend`, `redrive.http`,
`redrive.observe` and their own drivers, and do not know each other.
"""
