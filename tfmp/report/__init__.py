"""What people look at: views, tables, output."""
