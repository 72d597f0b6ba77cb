// A keyboard reaches what scrolls: Material wraps wide tables so that they scroll, and forgets that.
"use strict";
const reach = () => document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])").forEach((each) => {
  each.tabIndex = 0;
  each.setAttribute("role", "region");
  each.setAttribute("aria-label", "Table");
});
new MutationObserver(reach).observe(document.querySelector("article"), { childList: true, subtree: true });
reach();
