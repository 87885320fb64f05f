"use strict";
// Prepares the page for textual.js (xterm.js), which loads after this: the address of the websocket, the size of the
// letters, and what is shown when the dashboard has ended.

const MISSING = 1006; // the connection broke, or there was none (RFC 6455)
const Native = window.WebSocket;

// textual.js makes its websocket with the address that the element below names, and does not tell why it was closed.
window.WebSocket = class extends Native {
  constructor(...given) {
    super(...given);
    this.addEventListener("close", (event) => ended(event.code, event.reason));
    this.addEventListener("message", begun, { once: true });
  }
};

function begun() {
  document.body.classList.add("begun");
  // Keys are for the dashboard at once; on a phone that would open the keyboard over it.
  if (!window.matchMedia("(pointer: coarse)").matches) {
    document.querySelector(".xterm-helper-textarea").focus();
  }
}

function ended(code, reason) {
  const lost = code === MISSING ? "the connection to the server is lost" : "";
  const why = reason || lost;
  document.getElementById("why").textContent = "The dashboard has ended" + (why ? ": " + why : "") + ".";
  document.getElementById("over").hidden = false;
  document.getElementById("again").focus();
}

document.addEventListener("DOMContentLoaded", () => {
  // Relative to this page: a proxy may have put a path before it.
  const url = new URL("ws", window.location.href);
  url.protocol = url.protocol.replace("http", "ws");
  const terminal = document.getElementById("terminal");
  terminal.dataset.sessionWebsocketUrl = url.href;
  // A phone of 390 pixels has 59 columns with this size.
  terminal.dataset.fontSize = window.innerWidth < 700 ? "11" : "15";
  document.getElementById("again").addEventListener("click", () => window.location.reload());
});

// Letters are measured when the terminal is made: the font must be there before.
const loaded = document.fonts.load("15px 'Roboto Mono'");
let begin = null;
Object.defineProperty(window, "onload", {
  configurable: true,
  set(handler) {
    begin = handler;
  },
});
window.addEventListener("load", (event) => loaded.finally(() => begin && begin(event)));
