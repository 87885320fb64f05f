// A page that is opened as a file (file://) may start no worker. Search then runs in a hidden frame instead, which loads the
// worker's script and passes the messages on. The name IFrameWorker tells that script where it is.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.srcdoc =
        '<script>window.postMessage = data => parent.postMessage({ fromSearchWorker: data }, "*")</' +
        'script><script src="' + url + '"></' + "script>";
      this.ready = new Promise(resolve => this.frame.addEventListener("load", resolve, { once: true }));
      document.body.append(this.frame);
      window.addEventListener("message", event => {
        if (event.source !== this.frame.contentWindow) return;
        const answer = new MessageEvent("message", { data: event.data.fromSearchWorker });
        this.dispatchEvent(answer);
        if (this.onmessage) this.onmessage(answer);
      });
    }
    postMessage(data) {
      this.ready.then(() =>
        this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data: data, source: window })));
    }
    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
