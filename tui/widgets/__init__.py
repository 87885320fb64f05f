"""What is on the screen: bars and plots, the table, and the lines above and below it."""
