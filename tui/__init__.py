"""`llload-tui`, the dashboard: a feed process, records of what it saw, and a screen that draws them.

Where to look:
    the command's options, the start       options, main; what a person wrote and what is remembered: user_config
    the feed process                       feed_process; its sources scenes, recorded_history; all messages: wire
    the dashboard's end of it              feed -> messages; one survey: picture; figures over time: history, points
    the program and its one screen         app (program, board); keys for time: time_keys
    what a key is called and does          keymap (one list), screens/keys_above; said by screens/help and palette
    keys that came too early               typed_ahead
    the place and the views                place; view_list -> views/*; what each of them can do: view
    what stands in a line and a cell       rows, gpu_rows (lines), tables/* (columns), column
    the table itself, its filter           widgets/grid*; query, query_terms
    cancel, signal, output, copy           action_keys (ask), action_rules (decide), actions (act), target, clipboard
    what opens over it, and its parts      screens/*, widgets/*
    how it looks                           themes, dashboard.tcss; for ASCII terminals widgets/signs
    Textual's faults                       workarounds
"""
