"""What several systems need and no system owns: each module is one small idea."""
