"""`llload-tui`, the dashboard: a feed process reads surveys, and the screen draws them.

Where to look:
    command line and start                 options, main; configuration and remembered choices: user_config
    the feed process                       feed_process; its sources: feed_sources; messages: wire
    the dashboard's end of the feed        feed; one survey: picture; histories: history, history_values
    the program and its screen             app (program, main_screen)
    keys                                   keymap (every list of keys); shown by screens/help and palette
    keys typed ahead                       typed_ahead
    locations and views                    location; views/*; their base: views/table
    rows and columns of the tables         tables, and slurm_share.load
    the table widget and its filter        widgets/grid*; query, query_terms
    cancel, signal, output, copy           action_keys (ask), action_rules (decide), actions (act), clipboard
    other screens and their parts          screens/*, widgets/*
    appearance                             themes, dashboard.tcss; for ASCII terminals widgets/glyphs
    workarounds for faults of Textual      workarounds
"""
