"""`llload-tui --serve`: the dashboard in a web browser.

Where to look:
    what a request may ask for             addresses (pure), access (the link, the logins)
    the HTTP server and its limits         server; what the browser gets: page/
    the process of one dashboard           session (the server's side), child (the dashboard's)
    start and end of the command           serve
"""
