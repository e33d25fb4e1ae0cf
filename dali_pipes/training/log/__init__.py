"""What a run says and writes: lines, tables, figures of speed."""
