// Browsers start no workers for pages that are opened as files: there, run a worker's script in a hidden frame, so that the search works.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inner.document.createElement("script");
      this.inner = new Promise((resolve) => script.addEventListener("load", () => resolve(inner)));
      script.src = new URL(url, location.href).href;
      inner.document.head.append(script);
    }

    set onmessage(listener) {
      this.addEventListener("message", listener);
    }

    async postMessage(data) {
      const inner = await this.inner;
      inner.dispatchEvent(new inner.MessageEvent("message", { data }));
    }
  };
}
