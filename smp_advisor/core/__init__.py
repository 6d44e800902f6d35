"""What every room shares: doors to files and words, tables, arithmetic, imports."""
