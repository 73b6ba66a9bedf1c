"""A real project of Django's, in a process of its own for each database: settings hold for a whole process."""
