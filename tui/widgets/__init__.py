"""The widgets: bars and plots, the table, and the lines above and below it."""
