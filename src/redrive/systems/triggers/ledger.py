"""The deliveries as a ledger, and the names under which people find what triggers keeps, wherever it is kept."""

from redrive import LedgerTable, Words

TRIGGER_DELIVERIES = LedgerTable(
    "trigger_deliveries",
    key="id",
    words=Words(claimed="claimed", cancelled="cancelled"),
    count="retry_attempts",
    counts="retries",
    count_max="retries_max",
    last_error="last_error",
    claimed_at="claimed_at",
    ended_at="ended_at",
    created_at="created_at",
    updated_at="updated_at",
    redrives="redrives",
    gate="endpoint_id",
    tenant="user_id",
)
DELIVERIES = TRIGGER_DELIVERIES.name
EVENTS = "trigger_events"
"""What charts count."""
ENDPOINTS = "trigger_endpoints"
"""What the audit log calls endpoints."""
