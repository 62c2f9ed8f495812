"""From the journals of an experiment to tables, figures and a page."""
