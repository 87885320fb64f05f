"""The screens that open over the main screen: help, confirmation, output, choices."""
