"""Whether a node writes otherwise since others teach it: phrases that they brought, the length and variety of its texts."""
