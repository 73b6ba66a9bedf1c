"""What people see and do, over any ledger: figures, pages, searches, alerts. Nothing here knows HTTP or a terminal."""
