"""From rows to tables, plots, one HTML page, and figures in the documentation that nobody types by hand."""
