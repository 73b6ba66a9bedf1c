"""What people see, read from tables of SQL."""
