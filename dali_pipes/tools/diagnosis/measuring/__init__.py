"""One measured span of work: its speed, where its time went, and the machine's counters."""
